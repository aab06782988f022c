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
    rows.push(await turn(redlock, number, name, () => now() >= until));
  }
}

async function turn(redlock, number, name, isOver) {
  const asked = now();
  const lock = await acquire(redlock, name, isOver);
  return giveBack(lock, number, asked, now());
}

async function giveBack(lock, number, asked, granted) {
  const released = now();
  await lock.unlock();
  return `${number} ${asked} ${granted} ${released} ${now()}`;
}

function sayRows(rows) {
  process.stdout.write([...rows, 'done'].join('\n') + '\n');
}

async function loop(client, redlock, names, tasks, seconds) {
  await line();
  const until = now() + BigInt(Math.round(Number(seconds) * 1e9));
  const rows = [];
  const parties = [];
  for (let i = 0; i < Number(tasks); i += 1) {
    parties.push(party(redlock, i, names === 'own' ? `bench/${i}` : 'bench/one', until, rows).catch(() => {}));
  }
  // Without contention every party ends by itself; with it, some would still wait.
  await Promise.race([Promise.all(parties), sleep(Number(seconds) * 1000 + (names === 'own' ? 1000 : 0))]);
  sayRows(rows);
  await line();
}

async function wait(client, redlock, tasks) {
  await line();
  const held = await redlock.lock('bench/one', TTL_MS);
  for (let i = 0; i < Number(tasks); i += 1) acquire(redlock, 'bench/one', () => false).catch(() => {});
  await sleep(1500);
  process.stdout.write('standing\n');
  await line();
  await held.unlock();
  process.stdout.write('done\n');
}

// The same client, but we see when it is answered for the first time.
function watched(client, answered) {
  return {
    evalsha: (hash, args, done) =>
      client.evalsha(hash, args, (error, answer) => {
        if (!error) answered();
        done(error, answer);
      }),
    eval: (args, done) => client.eval(args, done),
  };
}

async function drain(client, redlock, parties, first, step, limit) {
  const limitMs = Number(limit) * 1000;
  let holding = null;
  await line();
  for (;;) {
    const order = (await line()).value;
    if (order === 'hold') {
      const asked = now();
      const lock = await acquire(redlock, 'bench/one', () => false);
      holding = [lock, Number(parties), asked, now()];
      process.stdout.write('held\n');
    } else if (order === 'wait') {
      const rows = [];
      const refused = [];
      const waiting = [];
      let isOver = false;
      for (let i = 0; i < Number(parties); i += 1) {
        // The lock is held: the first answer is a refusal.
        let answered;
        refused.push(new Promise((done) => { answered = done; }));
        const own = new Redlock([watched(client, answered)]);
        waiting.push(
          sleep((Number(first) + Number(step) * i) * 1000)
            .then(() => turn(own, i, 'bench/one', () => isOver))
            .then((row) => rows.push(row))
            .catch(() => {}),
        );
      }
      const inVain = setTimeout(() => process.exit(1), limitMs);
      await Promise.all(refused);
      clearTimeout(inVain);
      process.stdout.write('standing\n');
      if (holding) {
        await line();
        rows.push(await giveBack(...holding));
        holding = null;
      }
      await Promise.race([Promise.all(waiting), sleep(limitMs)]);
      isOver = true;
      sayRows(rows);
    } else {
      process.stdout.write('done\n');
      return;
    }
  }
}

(async () => {
  const [url, job, ...rest] = process.argv.slice(2);
  const client = new Redis(url);
  await client.ping();
  process.stdout.write('ready\n');
  await { loop, wait, drain }[job](client, new Redlock([client]), ...rest);
  process.exit(0);
})();
