-- Analytical queries on tables of numbers generated without random(): the same everywhere.
PRAGMA temp_store = memory;
PRAGMA threads = 0;
CREATE TABLE customer (id INTEGER PRIMARY KEY, region INTEGER, segment TEXT);
CREATE TABLE sale (id INTEGER PRIMARY KEY, customer INTEGER, day INTEGER, amount INTEGER);

WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 49999)
INSERT INTO customer
SELECT i, (i * 2654435761 >> 7) % 25, printf('segment-%d', (i * 40503 >> 5) % 7) FROM n;

WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 749999)
INSERT INTO sale
SELECT i, (i * 2654435761 >> 3) % 50000, i / 2100, (i * 48271 % 2147483647) % 10000 FROM n;

CREATE INDEX sale_customer ON sale (customer);

SELECT region, segment, count(*), sum(amount)
FROM sale JOIN customer ON customer.id = sale.customer
GROUP BY region, segment ORDER BY 4 DESC LIMIT 10;

SELECT day / 30, count(DISTINCT customer), avg(amount) FROM sale GROUP BY 1 ORDER BY 1;

SELECT id, (SELECT sum(amount) FROM sale WHERE customer = customer.id) AS total
FROM customer WHERE region = 3 ORDER BY total DESC LIMIT 10;

SELECT customer, day, sum(amount) OVER (PARTITION BY customer ORDER BY day) AS running
FROM sale WHERE customer % 5 = 1 ORDER BY running DESC LIMIT 10;

UPDATE sale SET amount = amount + 1 WHERE day % 3 = 0;

SELECT segment, max(total) FROM (
    SELECT segment, sale.customer, sum(amount) AS total
    FROM sale JOIN customer ON customer.id = sale.customer GROUP BY 2
) GROUP BY segment ORDER BY segment;
