// A Windlass worker that uses only Node's standard library.
//
//     WINDLASS_URL=http://127.0.0.1:8080 WINDLASS_KEY=wl_… node worker.mjs
//
// It claims jobs, runs them, renews their leases and reports their outcomes. At SIGTERM it stops gracefully: jobs that
// do not finish in time go back to the queue and run elsewhere, without counting as a failure.
import { randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";

const env = process.env;
const [URL_, NAME] = [env.WINDLASS_URL ?? "http://127.0.0.1:8080", env.WORKER ?? `node-${process.pid}`];
const [QUEUES, SLOTS] = [(env.QUEUES ?? "default").split(","), Number(env.SLOTS ?? 4)];
const [LEASE, GRACE] = [Number(env.LEASE_SECONDS ?? 30), Number(env.GRACE_SECONDS ?? 20)];

// Handlers. The return value is the job's result; an exception is the error of this attempt.
const HANDLERS = {
  greet: async (payload) => ({ greeting: `Hello, ${payload.name}!` }),
  // Sleeps, and stops early on a cancellation or a lost lease.
  pause: async (payload, job) => sleep(payload.seconds * 1000, undefined, { signal: job.stop.signal }),
};

const running = new Map();
const stopping = new AbortController();

// Prints an event and its fields on one line.
function log(event, job, fields) {
  const named = job && { id: job.id, kind: job.kind, attempt: job.attempt };
  const quoted = (value) => (/\s/.test(value) ? JSON.stringify(value) : value);
  console.log(event, ...Object.entries({ ...named, ...fields }).map(([name, value]) => `${name}=${quoted(value)}`));
}

// Sends a request; retries while the server is unavailable or busy. Every call in this file is safe to repeat.
async function call(path, fields, { seconds = 40, tries = 8 } = {}) {
  const headers = { "content-type": "application/json" };
  if (env.WINDLASS_KEY) headers.authorization = `Bearer ${env.WINDLASS_KEY}`;
  const body = JSON.stringify({ worker: NAME, ...fields });
  for (let attempt = 0; attempt < tries; attempt++) {
    const signal = AbortSignal.timeout(seconds * 1000);
    const answer = await fetch(URL_ + path, { method: "POST", headers, body, signal }).catch((error) => error);
    const text = await answer.text?.().catch(() => "");
    if (answer.ok && text) return JSON.parse(text);
    const problem = new Error(`${path}: ${answer.status ?? answer.message} ${text ?? ""}`);
    console.error(problem.message);
    if (answer.status < 500 && ![200, 408, 429].includes(answer.status)) throw problem; // a retry would not help
    await sleep(Math.min(100 * 2 ** attempt, 5000));
  }
}

// Claims or renews, and obeys the signal `stop`. With `pause_claims`, the server returns no jobs until `resume`.
async function ask(path, fields, options) {
  const answer = await call(path, { lease: `${LEASE}s`, ...fields }, options).catch(() => {
    process.exitCode = 1; // the server refuses this worker: stop, and release its jobs
    return { signal: "stop" };
  });
  if (answer?.signal === "stop") stopping.abort();
  return answer?.data ?? [];
}

// Reports an outcome until the server accepts it or the lease is lost. Meanwhile, `renew` keeps the lease.
async function settle(job, outcome) {
  while (running.get(job.id) === job) {
    let status = "refused";
    try {
      const report = { id: job.id, attempt: job.attempt, ...outcome };
      const answer = await call("/api/v1/settle", { outcomes: [report] });
      if (!answer && !stopping.signal.aborted) continue;
      status = answer?.data[0].status ?? "unreported";
    } catch (refused) {
      const error = `the result cannot be reported: ${refused.message}`; // it is too large or not JSON
      if (outcome.outcome === "succeeded") return settle(job, { outcome: "failed", error });
    }
    if (running.get(job.id) === job) running.delete(job.id);
    log(outcome.outcome, job, { status, ...(outcome.error && { error: outcome.error }) });
  }
}

async function run(job) {
  try {
    job.outcome = { outcome: "succeeded", result: (await HANDLERS[job.kind](job.payload, job)) ?? null };
  } catch (error) {
    job.outcome = job.cancelled ? { outcome: "cancelled" } : { outcome: "failed", error: String(error) };
  }
  await settle(job, job.outcome);
}

async function renew() {
  const leases = [...running.values()].map(({ id, attempt }) => ({ id, attempt }));
  for (const renewed of await ask("/api/v1/renew", { leases }, { seconds: LEASE / 3, tries: 1 })) {
    const job = running.get(renewed.id);
    if (!job || (renewed.status === "renewed" && !renewed.cancel_requested)) continue;
    // After a lost lease, the server ignores this attempt.
    if (renewed.status !== "renewed") running.delete(job.id);
    job.cancelled = Boolean(renewed.cancel_requested);
    log(job.cancelled ? "cancelling" : "lost", job);
    job.stop.abort();
  }
}

for (const name of ["SIGTERM", "SIGINT"]) process.on(name, () => stopping.abort());
setInterval(renew, (LEASE * 1000) / 3);
log("started", null, { worker: NAME, server: URL_, queues: QUEUES.join(","), slots: SLOTS });
while (!stopping.signal.aborted) {
  const free = SLOTS - running.size;
  if (free === 0) await sleep(20);
  const claim = { queues: QUEUES, kinds: Object.keys(HANDLERS), limit: free, slots: SLOTS, claim_id: randomUUID() };
  for (const job of free === 0 ? [] : await ask("/api/v1/claim", { ...claim, wait: "2s" })) {
    log("claimed", job);
    running.set(job.id, Object.assign(job, { stop: new AbortController(), cancelled: false, outcome: null }));
    run(job);
  }
}
log("stopping", null, { running: running.size, grace_seconds: GRACE });
for (const until = Date.now() + GRACE * 1000; running.size > 0 && Date.now() < until; ) await sleep(20);
for (const job of running.values()) await settle(job, job.outcome ?? { outcome: "released", started: true });
log("stopped");
process.exit();
