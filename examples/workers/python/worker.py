#!/usr/bin/env python3
"""A Windlass worker that uses only the standard library.

    WINDLASS_URL=http://127.0.0.1:8080 WINDLASS_KEY=wl_… python3 worker.py

It claims jobs, runs them in threads, renews their leases and reports their outcomes. At SIGTERM it stops gracefully:
jobs that do not finish in time go back to the queue and run elsewhere, without counting as a failure."""
import http.client, json, os, signal, sys, threading, time, urllib.request, uuid
env = os.environ.get
URL, KEY, NAME = env("WINDLASS_URL", "http://127.0.0.1:8080"), env("WINDLASS_KEY"), env("WORKER", f"python-{os.getpid()}")
QUEUES, SLOTS = env("QUEUES", "default").split(","), int(env("SLOTS", "4"))
LEASE, GRACE = float(env("LEASE_SECONDS", "30")), float(env("GRACE_SECONDS", "20"))

# Handlers. The return value is the job's result; an exception is the error of this attempt.
def greet(payload, job):
    return {"greeting": f"Hello, {payload['name']}!"}

def pause(payload, job):
    if job["stop"].wait(payload["seconds"]):  # stops early on a cancellation or a lost lease
        raise InterruptedError("stopped early")

HANDLERS = {"greet": greet, "pause": pause}
running, lock, stopping, problems = {}, threading.Lock(), threading.Event(), []

def log(event, job=None, **fields):
    """Prints an event and its fields on one line."""
    fields = ({name: job[name] for name in ("id", "kind", "attempt")} if job else {}) | fields
    line = (f"{name}={json.dumps(value) if any(map(str.isspace, str(value))) else value}" for name, value in fields.items())
    print(event, *line, flush=True)

def call(path, body, timeout=40, tries=8):
    """Sends a request; retries while the server is unavailable or busy. Every call in this file is safe to repeat."""
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {KEY}"} if KEY else {})
    request = urllib.request.Request(URL + path, json.dumps({"worker": NAME, **body}).encode(), headers)
    for attempt in range(tries):
        try:
            with urllib.request.urlopen(request, timeout=timeout) as answer:
                return json.load(answer)
        except (OSError, ValueError, http.client.HTTPException) as error:
            status, text = getattr(error, "code", 503), getattr(error, "read", bytes)().decode(errors="replace")
            print(f"{path}: {error} {text}", file=sys.stderr)
            if status < 500 and status not in (408, 429):  # a retry would not help
                raise RuntimeError(f"{path}: {error} {text}") from None
        time.sleep(min(0.1 * 2**attempt, 5))

def ask(path, body, **options):
    """Claims or renews, and obeys the signal `stop`. With `pause_claims`, the server returns no jobs until `resume`."""
    try:
        answer = call(path, {"lease": f"{LEASE}s", **body}, **options) or {}
    except RuntimeError as refused:  # the server refuses this worker: stop, and release its jobs
        problems.append(refused)
        answer = {"signal": "stop"}
    if answer.get("signal") == "stop":
        stopping.set()
    return answer.get("data", [])

def settle(job, outcome):
    """Reports an outcome until the server accepts it or the lease is lost. Meanwhile, `renew` keeps the lease."""
    while running.get(job["id"]) is job:
        try:
            report = {"id": job["id"], "attempt": job["attempt"], **outcome}
            answer = call("/api/v1/settle", {"outcomes": [report]})
            if answer is None and not stopping.is_set():
                continue
            status = answer["data"][0]["status"] if answer else "unreported"
        except Exception as error:
            if outcome["outcome"] == "succeeded":  # the result is too large or not JSON
                return settle(job, {"outcome": "failed", "error": f"the result cannot be reported: {error}"})
            status = "refused"
        with lock:
            running.pop(job["id"], None)
        log(outcome["outcome"], job, status=status, **{name: outcome[name] for name in ("error",) if name in outcome})

def run(job):
    try:
        job["outcome"] = {"outcome": "succeeded", "result": HANDLERS[job["kind"]](job["payload"], job)}
    except BaseException as error:
        failed = {"outcome": "failed", "error": f"{type(error).__name__}: {error}"}
        job["outcome"] = {"outcome": "cancelled"} if job["cancelled"] else failed
    settle(job, job["outcome"])

def renew():
    while not time.sleep(LEASE / 3):
        with lock:
            leases = [{"id": job["id"], "attempt": job["attempt"]} for job in running.values()]
        for renewed in ask("/api/v1/renew", {"leases": leases}, timeout=LEASE / 3, tries=1):
            lost, cancelled = renewed["status"] != "renewed", bool(renewed.get("cancel_requested"))
            with lock:  # after a lost lease, the server ignores this attempt
                job = running.pop(renewed["id"], None) if lost else running.get(renewed["id"])
            if job and (lost or cancelled):
                log("lost" if lost else "cancelling", job)
                job["cancelled"] = cancelled
                job["stop"].set()

for name in (signal.SIGTERM, signal.SIGINT):
    signal.signal(name, lambda *_: stopping.set())
threading.Thread(target=renew, daemon=True).start()
log("started", worker=NAME, server=URL, queues=",".join(QUEUES), slots=SLOTS)
while not stopping.is_set():
    free = SLOTS - len(running)
    claim = {"queues": QUEUES, "kinds": list(HANDLERS), "limit": free, "slots": SLOTS, "claim_id": str(uuid.uuid4())}
    for job in ask("/api/v1/claim", {**claim, "wait": "2s"}) if free else []:
        with lock:
            running[job["id"]] = job = job | {"stop": threading.Event(), "cancelled": False, "outcome": None}
        log("claimed", job)
        threading.Thread(target=run, args=(job,), daemon=True).start()
    stopping.wait(0 if free else 0.02)
log("stopping", running=len(running), grace_seconds=GRACE)
until = time.monotonic() + GRACE
while running and time.monotonic() < until:
    time.sleep(0.02)
for job in list(running.values()):
    settle(job, job["outcome"] or {"outcome": "released", "started": True})
log("stopped")
sys.exit(1 if problems else 0)
