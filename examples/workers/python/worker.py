#!/usr/bin/env python3
"""A Windlass worker with nothing but the standard library.

    WINDLASS_URL=http://127.0.0.1:8080 WINDLASS_KEY=wl_… python3 worker.py

It claims jobs, runs them in threads, renews their leases, tells how they ended, and stops gracefully at SIGTERM:
what does not end in time is given back and runs elsewhere, without counting as a failure.
"""
import json, os, signal, sys, threading, time, urllib.error, urllib.request, uuid
URL = os.environ.get("WINDLASS_URL", "http://127.0.0.1:8080")
KEY = os.environ.get("WINDLASS_KEY")
QUEUES = os.environ.get("QUEUES", "default").split(",")
SLOTS = int(os.environ.get("SLOTS", "4"))
LEASE = float(os.environ.get("LEASE_SECONDS", "30"))
GRACE = float(os.environ.get("GRACE_SECONDS", "20"))
NAME = os.environ.get("WORKER", f"python-{os.getpid()}")


# Handlers: what one returns is the result; what it raises is the error of this attempt.
def greet(payload, job):
    return {"greeting": f"Hello, {payload['name']}!"}

def pause(payload, job):
    if job["stop"].wait(payload["seconds"]):  # it stops early when it is told to
        raise InterruptedError("told to stop")

HANDLERS = {"greet": greet, "pause": pause}
running, lock, stopping = {}, threading.Lock(), threading.Event()


def call(path, body, timeout=40, tries=8):
    """Asks the server; tries again while it is away or busy. Every call here may safely be made twice."""
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {KEY}"} if KEY else {})
    request = urllib.request.Request(URL + path, json.dumps(body).encode(), headers)
    for attempt in range(tries):
        try:
            with urllib.request.urlopen(request, timeout=timeout) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as refused:
            if refused.code not in (429, 502, 503, 504):
                raise SystemExit(f"{path}: {refused.code} {refused.read().decode()}")
        except (OSError, ValueError) as away:
            print(f"{path}: {away}", file=sys.stderr)
        time.sleep(min(0.1 * 2**attempt, 5))
    return None


def settle(job, **outcome):
    with lock:
        if running.pop(job["id"], None) is None:
            return  # somebody else has told how it ended, or its lease is lost
    call("/api/v1/settle", {"worker": NAME, "outcomes": [{"id": job["id"], "attempt": job["attempt"], **outcome}]})


def run(job):
    try:
        settle(job, outcome="succeeded", result=HANDLERS[job["kind"]](job["payload"], job))
    except Exception as error:
        failed = {"outcome": "failed", "error": f"{type(error).__name__}: {error}"}
        settle(job, **({"outcome": "cancelled"} if job["cancelled"] else failed))


def renew():
    while True:
        time.sleep(LEASE / 3)
        with lock:
            leases = [{"id": job["id"], "attempt": job["attempt"]} for job in running.values()]
        answer = call("/api/v1/renew", {"worker": NAME, "lease": f"{LEASE}s", "leases": leases}, timeout=LEASE / 3, tries=1)
        for renewed in (answer or {}).get("data", []):
            lost, called_off = renewed["status"] != "renewed", bool(renewed.get("cancel_requested"))
            with lock:  # a lost lease is not ours any more: what the handler does from now on counts for nothing
                job = running.pop(renewed["id"], None) if lost else running.get(renewed["id"])
            if job and (lost or called_off):
                job["cancelled"] = called_off
                job["stop"].set()
        if (answer or {}).get("signal"):
            stopping.set()


def main():
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, lambda *_: stopping.set())
    threading.Thread(target=renew, daemon=True).start()
    while not stopping.is_set():
        if len(running) == SLOTS:
            time.sleep(0.02)
            continue
        claim = {"queues": QUEUES, "kinds": list(HANDLERS), "limit": SLOTS - len(running), "slots": SLOTS,
                 "lease": f"{LEASE}s", "wait": "2s", "worker": NAME, "claim_id": str(uuid.uuid4())}
        for job in (call("/api/v1/claim", claim) or {}).get("data", []):
            running[job["id"]] = job | {"stop": threading.Event(), "cancelled": False}
            threading.Thread(target=run, args=(running[job["id"]],), daemon=True).start()
    until = time.monotonic() + GRACE
    while running and time.monotonic() < until:
        time.sleep(0.02)
    for job in list(running.values()):
        settle(job, outcome="released", started=True)


main()
