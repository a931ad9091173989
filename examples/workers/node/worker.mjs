// A Windlass worker with nothing but Node's standard library.
//
//     WINDLASS_URL=http://127.0.0.1:8080 WINDLASS_KEY=wl_… node worker.mjs
//
// It claims jobs, runs them, renews their leases, tells how they ended, and stops gracefully at SIGTERM:
// what does not end in time is given back and runs elsewhere, without counting as a failure.
import { randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";

const env = process.env;
const URL_ = env.WINDLASS_URL ?? "http://127.0.0.1:8080";
const QUEUES = (env.QUEUES ?? "default").split(",");
const SLOTS = Number(env.SLOTS ?? 4);
const LEASE = Number(env.LEASE_SECONDS ?? 30);
const GRACE = Number(env.GRACE_SECONDS ?? 20);
const NAME = env.WORKER ?? `node-${process.pid}`;

// Handlers: what one returns is the result; what it throws is the error of this attempt.
const HANDLERS = {
  greet: async (payload) => ({ greeting: `Hello, ${payload.name}!` }),
  // Takes its time, and stops early when it is told to.
  pause: async (payload, job) => sleep(payload.seconds * 1000, undefined, { signal: job.stop.signal }),
};

const running = new Map();
const stopping = new AbortController();

// Asks the server; tries again while it is away or busy. Every call here may safely be made twice.
async function call(path, body, { seconds = 40, tries = 8 } = {}) {
  const headers = { "content-type": "application/json" };
  if (env.WINDLASS_KEY) headers.authorization = `Bearer ${env.WINDLASS_KEY}`;
  for (let attempt = 0; attempt < tries; attempt++) {
    try {
      const signal = AbortSignal.timeout(seconds * 1000);
      const answer = await fetch(URL_ + path, { method: "POST", headers, body: JSON.stringify(body), signal });
      if (answer.ok) return await answer.json();
      if (![429, 502, 503, 504].includes(answer.status)) {
        console.error(`${path}: ${answer.status} ${await answer.text()}`);
        process.exit(1);
      }
    } catch (away) {
      console.error(`${path}: ${away.message}`);
    }
    await sleep(Math.min(100 * 2 ** attempt, 5000));
  }
  return null;
}

async function settle(job, outcome) {
  // If it is gone, somebody else has told how it ended, or its lease is lost.
  if (!running.delete(job.id)) return;
  await call("/api/v1/settle", { worker: NAME, outcomes: [{ id: job.id, attempt: job.attempt, ...outcome }] });
}

async function run(job) {
  try {
    const result = (await HANDLERS[job.kind](job.payload, job)) ?? null;
    await settle(job, { outcome: "succeeded", result });
  } catch (error) {
    await settle(job, job.cancelled ? { outcome: "cancelled" } : { outcome: "failed", error: String(error) });
  }
}

async function renew() {
  const leases = [...running.values()].map(({ id, attempt }) => ({ id, attempt }));
  const body = { worker: NAME, lease: `${LEASE}s`, leases };
  const answer = await call("/api/v1/renew", body, { seconds: LEASE / 3, tries: 1 });
  for (const renewed of answer?.data ?? []) {
    const job = running.get(renewed.id);
    if (!job || (renewed.status === "renewed" && !renewed.cancel_requested)) continue;
    // A lost lease is not ours any more: what the handler does from now on counts for nothing.
    if (renewed.status !== "renewed") running.delete(job.id);
    job.cancelled = Boolean(renewed.cancel_requested);
    job.stop.abort();
  }
  if (answer?.signal) stopping.abort();
}

for (const name of ["SIGTERM", "SIGINT"]) process.on(name, () => stopping.abort());
const renewing = setInterval(renew, (LEASE * 1000) / 3);
while (!stopping.signal.aborted) {
  const free = SLOTS - running.size;
  if (free === 0) {
    await sleep(20);
    continue;
  }
  const claim = { queues: QUEUES, kinds: Object.keys(HANDLERS), limit: free, slots: SLOTS, lease: `${LEASE}s` };
  const answer = await call("/api/v1/claim", { ...claim, wait: "2s", worker: NAME, claim_id: randomUUID() });
  for (const job of answer?.data ?? []) {
    running.set(job.id, Object.assign(job, { stop: new AbortController(), cancelled: false }));
    run(job);
  }
}
for (const until = Date.now() + GRACE * 1000; running.size > 0 && Date.now() < until; ) await sleep(20);
clearInterval(renewing);
await Promise.all([...running.values()].map((job) => settle(job, { outcome: "released", started: true })));
process.exit(0);
