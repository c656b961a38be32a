-- One analytical query that never ends, on tables in memory.
PRAGMA temp_store = memory;
CREATE TABLE customer (id INTEGER PRIMARY KEY, region INTEGER, segment TEXT);
CREATE TABLE sale (id INTEGER PRIMARY KEY, customer INTEGER, day INTEGER, amount INTEGER);

WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 4999)
INSERT INTO customer
SELECT i, (i * 2654435761 >> 7) % 25, printf('segment-%d', (i * 40503 >> 5) % 7) FROM n;

WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 99999)
INSERT INTO sale
SELECT i, (i * 2654435761 >> 3) % 5000, i / 1700, (i * 48271 % 2147483647) % 10000 FROM n;

CREATE INDEX sale_customer ON sale (customer);

WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n)
SELECT sum(amount * i % 13), max(segment || day), avg(amount), count(*)
FROM n
JOIN sale ON sale.customer = (i * 7919) % 5000
JOIN customer ON customer.id = sale.customer
WHERE (SELECT count(*) FROM customer AS c WHERE c.id BETWEEN i % 4000 AND i % 4000 + 20) > 3;
