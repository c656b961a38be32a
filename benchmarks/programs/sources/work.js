// Counts words, writes and reads JSON, fills typed arrays. usage: work.js ROUNDS (0: without end)
'use strict';

function once(seed) {
  let state = seed * 2 + 1;
  const draw = () => (state = (Math.imul(state, 1664525) + 1013904223) >>> 0) >>> 12;
  const counts = new Map();
  const rows = [];
  for (let i = 0; i < 5000; i++) {
    const word = 'w' + (draw() % 1500).toString(36);
    counts.set(word, (counts.get(word) || 0) + 1);
    if (i % 10 === 0) rows.push({ id: i, word, values: [draw() / 7, draw() / 11] });
  }
  let sum = 0;
  for (const row of JSON.parse(JSON.stringify(rows))) sum += row.values[0] + row.word.length;
  const grid = new Float64Array(20000).map(() => draw());
  for (let pass = 0; pass < 5; pass++)
    for (let i = 1; i < grid.length - 1; i++) grid[i] = (grid[i - 1] + grid[i + 1]) / 2;
  const text = [...counts].sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1)).join(';');
  return sum + grid[777] + text.replace(/w[aeiou]/g, '').length;
}

const rounds = Number(process.argv[2] || 0);
let sum = 0;
for (let i = 0; rounds === 0 || i < rounds; i++) sum = (sum * 31 + once(i % 1000)) % 1e9;
console.log(sum);
