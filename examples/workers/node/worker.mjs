// A Windlass worker with nothing but Node's standard library.
//
//     WINDLASS_URL=http://127.0.0.1:8080 WINDLASS_KEY=wl_… node worker.mjs
//
// It claims jobs, runs them, renews their leases, reports outcomes, prints what it does, and stops gracefully at
// SIGTERM: what does not end in time is given back and runs elsewhere, without counting as a failure.
import { randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";

const env = process.env;
const [URL_, NAME] = [env.WINDLASS_URL ?? "http://127.0.0.1:8080", env.WORKER ?? `node-${process.pid}`];
const [QUEUES, SLOTS] = [(env.QUEUES ?? "default").split(","), Number(env.SLOTS ?? 4)];
const [LEASE, GRACE] = [Number(env.LEASE_SECONDS ?? 30), Number(env.GRACE_SECONDS ?? 20)];

// Handlers: what one returns is the result; what it throws is the error of this attempt.
const HANDLERS = {
  greet: async (payload) => ({ greeting: `Hello, ${payload.name}!` }),
  // Takes its time, and stops early when it is told to.
  pause: async (payload, job) => sleep(payload.seconds * 1000, undefined, { signal: job.stop.signal }),
};

const running = new Map();
const stopping = new AbortController();

// Prints one line: the event, then its fields.
function log(event, job, fields) {
  const named = job && { id: job.id, kind: job.kind, attempt: job.attempt };
  const quoted = (value) => (/\s/.test(value) ? JSON.stringify(value) : value);
  console.log(event, ...Object.entries({ ...named, ...fields }).map(([name, value]) => `${name}=${quoted(value)}`));
}

// Asks the server; tries again while it is away or busy. Every call here may safely be made twice.
async function call(path, told, { seconds = 40, tries = 8 } = {}) {
  const headers = { "content-type": "application/json" };
  if (env.WINDLASS_KEY) headers.authorization = `Bearer ${env.WINDLASS_KEY}`;
  const body = JSON.stringify({ worker: NAME, ...told });
  for (let attempt = 0; attempt < tries; attempt++) {
    const signal = AbortSignal.timeout(seconds * 1000);
    const answer = await fetch(URL_ + path, { method: "POST", headers, body, signal }).catch((away) => away);
    const said = await answer.text?.().catch(() => "");
    if (answer.ok && said) return JSON.parse(said);
    const problem = new Error(`${path}: ${answer.status ?? answer.message} ${said ?? ""}`);
    console.error(problem.message);
    if (answer.status < 500 && ![200, 408, 429].includes(answer.status)) throw problem; // it never takes this
    await sleep(Math.min(100 * 2 ** attempt, 5000));
  }
}

// Claims or renews. Who is only quiet goes on asking, and gets nothing until it is resumed.
async function ask(path, told, how) {
  const answer = await call(path, { lease: `${LEASE}s`, ...told }, how).catch(() => {
    process.exitCode = 1; // nothing works without the server: end, and give back what can be given back
    return { signal: "stop" };
  });
  if (answer?.signal === "stop") stopping.abort();
  return answer?.data ?? [];
}

// Tells how an attempt ended, until the server has heard it or the lease is lost. It is renewed all the while.
async function settle(job, outcome) {
  while (running.get(job.id) === job) {
    let status = "refused";
    try {
      const told = { id: job.id, attempt: job.attempt, ...outcome };
      const answer = await call("/api/v1/settle", { outcomes: [told] });
      if (!answer && !stopping.signal.aborted) continue;
      status = answer?.data[0].status ?? "unreported";
    } catch (refused) {
      const error = `its result cannot be told: ${refused.message}`; // it is too large, or no JSON
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
    // A lost lease is not ours any more: what the handler does from now on counts for nothing.
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
