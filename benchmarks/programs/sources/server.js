// Answers GET /item/N with a JSON document about N. usage: server.js PORT
'use strict';
const http = require('http');

const words = Array.from({ length: 20000 }, (_, i) => 'w' + ((i * 2654435761) >>> 8).toString(36));
const counts = new Map();

const server = http.createServer((request, response) => {
  const number = Number(request.url.slice(request.url.lastIndexOf('/') + 1));
  const rows = [];
  for (let i = 0; i < 20; i++) {
    const word = words[(number * 31 + i * 977) % words.length];
    counts.set(word, (counts.get(word) || 0) + 1);
    rows.push({ id: i, word, count: counts.get(word) });
  }
  const body = JSON.stringify({ number, rows });
  response.setHeader('Content-Length', Buffer.byteLength(body));
  response.end(body);
});
server.keepAliveTimeout = 0;
server.listen(Number(process.argv[2]), '127.0.0.1');
