// One attempt to log in with rate-limiter-flexible: two limiters as in the login example of its
// documentation, one by address and one by user and address, asked one after the other.
//
// node bench.mjs PORT TASKS. Each line on stdin is a turn; each turn is answered by a line of JSON.
import { createInterface } from 'node:readline';
import Redis from 'ioredis';
import { RateLimiterRedis } from 'rate-limiter-flexible';

const TURN = 400; // milliseconds, as for the others
const DAY = 24 * 60 * 60; // seconds

const [port, tasks] = process.argv.slice(2).map(Number);
const storeClient = new Redis({ host: '127.0.0.1', port, enableOfflineQueue: false });
await new Promise((resolve) => storeClient.once('ready', resolve));
const limiter = (keyPrefix, points, blockDuration) =>
  new RateLimiterRedis({ storeClient, keyPrefix, points, duration: DAY, blockDuration });
const byAddress = limiter('login_fail_ip_per_day', 25, 7 * DAY);
const byUserAndAddress = limiter('login_fail_username_and_ip', 5, DAY);

let next = 0;

async function attempt() {
  const n = next++;
  const address = `${(n >> 24) & 255}.${(n >> 16) & 255}.${(n >> 8) & 255}.${n & 255}`;
  // Both throw if they refuse.
  await byAddress.consume(address);
  await byUserAndAddress.consume(`user${n}_${address}`);
}

async function task(started, waits) {
  while (performance.now() - started < TURN) {
    const begun = performance.now();
    await attempt();
    waits.push((performance.now() - begun) * 1000);
  }
}

for await (const _ of createInterface({ input: process.stdin })) {
  const started = performance.now();
  const waits = [];
  await Promise.all(Array.from({ length: tasks }, () => task(started, waits)));
  const seconds = (performance.now() - started) / 1000;
  waits.sort((a, b) => a - b);
  const at = (share) => waits[Math.floor((waits.length - 1) * share)];
  console.log(JSON.stringify({ rate: waits.length / seconds, p50: at(0.5), p99: at(0.99) }));
}
process.exit(0);
