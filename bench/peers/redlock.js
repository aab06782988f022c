// npm's redlock as a worker of the bench, at its defaults. The lines it talks are told in src/workers.rs.

const readline = require('readline');
const Redis = require('ioredis').default || require('ioredis');
const Redlock = require('redlock');

const TTL_MS = 30000;
const now = () => process.hrtime.bigint();
const sleep = (ms) => new Promise((done) => setTimeout(done, ms));

const lines = readline.createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const line = () => lines.next();

// It gives up after ten tries; a party that wants the lock asks again.
async function acquire(redlock, name, isOver) {
  for (;;) {
    try {
      return await redlock.lock(name, TTL_MS);
    } catch (error) {
      if (isOver() || error.name !== 'LockError') throw error;
    }
  }
}

async function party(redlock, number, name, until, rows) {
  while (now() < until) {
    const asked = now();
    const lock = await acquire(redlock, name, () => now() >= until);
    const granted = now();
    const released = now();
    await lock.unlock();
    rows.push(`${number} ${asked} ${granted} ${released} ${now()}`);
  }
}

async function loop(redlock, names, tasks, seconds) {
  await line();
  const until = now() + BigInt(Math.round(Number(seconds) * 1e9));
  const rows = [];
  const parties = [];
  for (let i = 0; i < Number(tasks); i += 1) {
    parties.push(party(redlock, i, names === 'own' ? `bench/${i}` : 'bench/one', until, rows).catch(() => {}));
  }
  // Without contention every party ends by itself; with it, some would still wait.
  await Promise.race([Promise.all(parties), sleep(Number(seconds) * 1000 + (names === 'own' ? 1000 : 0))]);
  rows.push('done');
  process.stdout.write(rows.join('\n') + '\n');
  await line();
}

async function wait(redlock, tasks) {
  await line();
  const held = await redlock.lock('bench/one', TTL_MS);
  for (let i = 0; i < Number(tasks); i += 1) acquire(redlock, 'bench/one', () => false).catch(() => {});
  await sleep(1500);
  process.stdout.write('standing\n');
  await line();
  await held.unlock();
  process.stdout.write('done\n');
}

(async () => {
  const [url, job, ...rest] = process.argv.slice(2);
  const client = new Redis(url);
  await client.ping();
  process.stdout.write('ready\n');
  await { loop, wait }[job](new Redlock([client]), ...rest);
  process.exit(0);
})();
