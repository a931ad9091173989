// Live figures, times, keyboard, copying. Every page can be read and used without this script.

const page = document.body;
const base = page.dataset.base ?? "";
const announce = document.getElementById("announce");

// The clock of the server decides, not that of the browser.
let clockAhead = Number(page.dataset.now ?? Date.now()) - Date.now();
const serverNow = () => Date.now() + clockAhead;

let announcedAt = 0;
function say(text) {
  if (!announce || Date.now() - announcedAt < 10_000) return;
  announcedAt = Date.now();
  announce.textContent = text;
}

// ---- the zone of the browser, for the next page

const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
if (zone && !document.cookie.includes(`windlass_zone=${encodeURIComponent(zone)}`)) {
  document.cookie = `windlass_zone=${encodeURIComponent(zone)}; path=/; max-age=31536000; samesite=strict`;
}

// ---- relative times and countdowns

const SPACE = "\u00a0";
function roughly(seconds) {
  if (seconds < 60) return `${seconds}${SPACE}s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)}${SPACE}m`;
  if (seconds < 172_800) return `${Math.floor(seconds / 3600)}${SPACE}h`;
  return `${Math.floor(seconds / 86_400)}${SPACE}d`;
}
function twoUnits(seconds) {
  const two = (large, unit, small, smallUnit) =>
    small ? `${large}${SPACE}${unit}${SPACE}${String(small).padStart(2, "0")}${SPACE}${smallUnit}` : `${large}${SPACE}${unit}`;
  if (seconds < 60) return `${seconds}${SPACE}s`;
  if (seconds < 3600) return two(Math.floor(seconds / 60), "m", seconds % 60, "s");
  if (seconds < 86_400) return two(Math.floor(seconds / 3600), "h", Math.floor((seconds % 3600) / 60), "m");
  return two(Math.floor(seconds / 86_400), "d", Math.floor((seconds % 86_400) / 3600), "h");
}
function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}
function tick() {
  const now = serverNow();
  for (const time of document.querySelectorAll('time[data-time="ago"]')) {
    const seconds = Math.round((Date.parse(time.dateTime) - now) / 1000);
    if (Number.isNaN(seconds)) continue;
    setText(time, seconds > 0 ? `in${SPACE}${roughly(seconds)}` : seconds === 0 ? "now" : `${roughly(-seconds)}${SPACE}ago`);
  }
  for (const time of document.querySelectorAll("time[data-countdown]")) {
    const left = Math.ceil((Date.parse(time.dateTime) - now) / 1000);
    if (!Number.isNaN(left)) setText(time, left > 0 ? twoUnits(left) : time.dataset.countdown || "due now");
  }
}
setInterval(tick, 1000);

// ---- live regions: the page itself is fetched again, and its regions are patched in place

const trusted = window.trustedTypes?.createPolicy("windlass", { createHTML: (html) => html });
const parse = (html) => new DOMParser().parseFromString(trusted ? trusted.createHTML(html) : html, "text/html");

// Changes `old` into `fresh` and keeps every node that can stay, so focus and hover survive.
function patch(old, fresh) {
  if (old.nodeType !== fresh.nodeType || old.nodeName !== fresh.nodeName) {
    old.replaceWith(document.importNode(fresh, true));
    return;
  }
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== fresh.data) old.data = fresh.data;
    return;
  }
  if (old.nodeType !== Node.ELEMENT_NODE) return;
  if (old.hasAttribute("data-keep")) return;
  for (const { name } of [...old.attributes]) {
    if (!fresh.hasAttribute(name) && name !== "open" && name !== "aria-selected" && name !== "class") old.removeAttribute(name);
  }
  for (const { name, value } of fresh.attributes) {
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  if (!fresh.hasAttribute("class") && old.hasAttribute("class")) old.removeAttribute("class");
  if (old.querySelector(":scope > [data-row]") || fresh.querySelector(":scope > [data-row]")) {
    patchList(old, fresh);
    return;
  }
  const [before, after] = [[...old.childNodes], [...fresh.childNodes]];
  after.forEach((child, index) => {
    if (before[index]) patch(before[index], child);
    else old.append(document.importNode(child, true));
  });
  before.slice(after.length).forEach((child) => child.remove());
}

// A list whose order follows its figures does not reorder under the pointer: known rows change in
// place, rows that left stay struck, and new rows come last. Where no one has touched the page for a
// minute, such as on a wall, the list follows the server again.
const UNTOUCHED_MS = 60_000;
let touchedAt = Date.now();
for (const type of ["pointermove", "pointerdown", "keydown", "wheel", "scroll"]) {
  addEventListener(type, () => (touchedAt = Date.now()), { passive: true });
}
const keyOf = (row) => row.dataset.row ?? row.id;
function patchList(list, fresh) {
  const follows = Date.now() - touchedAt > UNTOUCHED_MS && !list.contains(document.activeElement);
  const left = new Map([...list.children].map((row) => [keyOf(row), row]));
  for (const next of fresh.children) {
    const row = left.get(keyOf(next));
    left.delete(keyOf(next));
    if (row) {
      const isCurrent = row.classList.contains("at");
      patch(row, next);
      row.classList.toggle("at", isCurrent);
    }
    if (!row || follows) list.append(row ?? document.importNode(next, true));
  }
  for (const row of left.values()) {
    if (follows) row.remove();
    else row.classList.add("gone");
  }
}

// Rows never move under the pointer: known rows change in place, rows that left stay until the page
// is loaded again, and new rows are only counted.
function patchRows(old, fresh) {
  const now = new Map([...fresh.querySelectorAll("[data-row]")].map((row) => [row.dataset.row, row]));
  const known = new Set();
  for (const row of old.querySelectorAll("[data-row]")) {
    known.add(row.dataset.row);
    const next = now.get(row.dataset.row);
    row.classList.toggle("gone", !next);
    if (!next) continue;
    const cells = [...next.children];
    [...row.children].forEach((cell, index) => {
      if (cells[index] && !cell.querySelector("input")) patch(cell, cells[index]);
    });
  }
  const added = [...now.keys()].filter((key) => !known.has(key)).length;
  const pill = document.querySelector("[data-new-rows]");
  if (pill) {
    pill.hidden = added === 0;
    setText(pill, `${added} new`);
  }
}

// The pill stays in sight while someone scrolls.
const pill = document.querySelector("[data-new-rows]");
if (pill) {
  const inSight = ([entry]) => pill.classList.toggle("floating", !entry.isIntersecting);
  new IntersectionObserver(inSight).observe(pill.parentElement);
}

let fetching = null;
let freshAt = Date.now();
async function refresh() {
  if (fetching || document.hidden) return;
  fetching = new AbortController();
  const giveUp = setTimeout(() => fetching?.abort(), 15_000);
  try {
    const answer = await fetch(location.href, { signal: fetching.signal, headers: { accept: "text/html" }, credentials: "same-origin" });
    if (answer.redirected && new URL(answer.url).pathname.endsWith("/login")) {
      location.reload();
      return;
    }
    if (!answer.ok) throw new Error(String(answer.status));
    const fresh = parse(await answer.text());
    clockAhead = Number(fresh.body.dataset.now) - Date.now();
    for (const region of document.querySelectorAll("[data-live]")) {
      const next = fresh.getElementById(region.id);
      if (!next) {
        // The page has another shape now, such as the first job on an empty page.
        if (region.dataset.live === "shape") location.reload();
        continue;
      }
      if (region.contains(document.activeElement) && document.activeElement.matches("input, textarea, select")) continue;
      if (region.dataset.live === "rows") patchRows(region, next);
      else patch(region, next);
    }
    freshAt = Date.now();
    connected(true);
    if (stream && !polling) mark("Live", false);
    document.dispatchEvent(new CustomEvent("windlass:patched"));
  } catch (error) {
    if (error.name !== "AbortError") connected(false);
  } finally {
    clearTimeout(giveUp);
    fetching = null;
  }
}

// ---- the stream that says when to fetch

const marks = document.querySelectorAll("[data-live-mark]");
function mark(text, off) {
  for (const each of marks) {
    each.classList.toggle("off", off);
    setText(each.lastElementChild, off ? text : (each.dataset.liveText ?? text));
  }
}
let isConnected = true;
function connected(now) {
  if (now === isConnected) return;
  isConnected = now;
  const banner = document.getElementById("not-connected");
  if (banner) {
    banner.hidden = now;
    const since = banner.querySelector("[data-since]");
    if (!now && since) setText(since, new Date(serverNow()).toLocaleTimeString([], { hour12: false }));
  }
  page.classList.toggle("stale", !now);
  say(now ? "Connected again." : "Not connected. Figures are out of date.");
  if (!now) mark("Not connected", true);
}

document.querySelector("[data-try-now]")?.addEventListener("click", refresh);

// The stream reports at least every 8 s. Older figures say from when they are.
setInterval(() => {
  if (!page.dataset.liveStream || document.hidden || !isConnected || Date.now() - freshAt <= 12_000) return;
  const at = new Date(freshAt + clockAhead).toLocaleTimeString([], { hour12: false });
  mark(`As of ${at}`, true);
}, 1000);

let stream = null;
let polling = 0;
let failures = 0;
function listen() {
  const url = page.dataset.liveStream;
  if (!url || stream || document.hidden) return;
  stream = new EventSource(url);
  const alive = () => {
    failures = 0;
    clearInterval(polling);
    polling = 0;
    mark("Live", false);
  };
  stream.addEventListener("connected", () => {
    alive();
    refresh();
  });
  stream.addEventListener("changed", () => {
    alive();
    refresh();
  });
  stream.addEventListener("stale", () => connected(false));
  stream.addEventListener("error", () => {
    failures += 1;
    if (stream?.readyState === EventSource.CLOSED) {
      stream = null;
      setTimeout(listen, Math.min(30_000, 2000 * failures));
    }
    // A proxy may not pass streams on: the page is fetched every 5 s instead.
    if (failures >= 2 && !polling) {
      mark("Polling every 5 s", true);
      polling = setInterval(refresh, 5000);
    }
    if (failures === 1) refresh();
  });
}
document.addEventListener("visibilitychange", () => {
  if (document.hidden) {
    stream?.close();
    stream = null;
    mark("Paused, tab was hidden", true);
  } else {
    listen();
  }
});
listen();

// ---- a phone shows the current page in the strip of pages

const strip = document.getElementById("nav");
const currentPage = strip?.querySelector("[aria-current]");
if (currentPage && strip.scrollWidth > strip.clientWidth) {
  strip.scrollLeft = currentPage.offsetLeft - (strip.clientWidth - currentPage.offsetWidth) / 2;
}

// ---- copying

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  const text = button.dataset.copy || button.closest(".cmd, section")?.querySelector("code, pre")?.textContent || "";
  try {
    await navigator.clipboard.writeText(text.trim());
    button.classList.add("done");
    say("Copied.");
    setTimeout(() => button.classList.remove("done"), 1500);
  } catch {
    say("The browser does not allow copying.");
  }
});

// ---- keyboard

const keysDialog = document.getElementById("keys");
const keysOff = document.querySelector("[data-keys-off]");
const single = () => localStorage.getItem("windlass-keys") !== "off";
if (keysOff) {
  keysOff.checked = !single();
  keysOff.addEventListener("change", () => localStorage.setItem("windlass-keys", keysOff.checked ? "off" : "on"));
}
for (const button of document.querySelectorAll("[data-keys-open]")) {
  button.addEventListener("click", () => keysDialog?.showModal());
}
const rows = () => [...document.querySelectorAll("[data-row]")].filter((row) => row.offsetParent !== null);
const currentRow = () => document.querySelector("[data-row].at");
function moveRow(step) {
  const all = rows();
  if (!all.length) return;
  const at = all.indexOf(currentRow());
  const next = all[Math.max(0, Math.min(all.length - 1, at < 0 ? 0 : at + step))];
  currentRow()?.classList.remove("at");
  next.classList.add("at");
  next.scrollIntoView({ block: "nearest" });
  (next.querySelector("a.cell") ?? next.querySelector("a"))?.focus({ preventScroll: true });
}
let going = 0;
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || !single()) return;
  if (event.target.matches("input:not([type=checkbox], [type=radio]), textarea, select, [contenteditable]")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  if (keysDialog?.open) return;
  if (going && Date.now() - going < 1500) {
    going = 0;
    const link = document.querySelector(`[data-go="${CSS.escape(event.key)}"]`);
    if (link) {
      event.preventDefault();
      link.click();
    }
    return;
  }
  const act = {
    "/": () => document.querySelector("[data-find]")?.focus(),
    "?": () => keysDialog?.showModal(),
    g: () => (going = Date.now()),
    j: () => moveRow(1),
    k: () => moveRow(-1),
    x: () => currentRow()?.querySelector("input[type=checkbox]")?.click(),
    r: () => document.querySelector("[data-key=r]")?.click(),
    "[": () => document.querySelector("[data-key='[']")?.click(),
    "]": () => document.querySelector("[data-key=']']")?.click(),
    Escape: () => {
      currentRow()?.classList.remove("at");
      document.querySelector("[data-clear]")?.click();
      for (const open of document.querySelectorAll("details.menu[open]")) open.open = false;
    },
  }[event.key];
  if (!act) return;
  if (event.key !== "Escape") event.preventDefault();
  act();
});
document.addEventListener("click", (event) => {
  for (const open of document.querySelectorAll("details.menu[open]")) {
    if (!open.contains(event.target)) open.open = false;
  }
});

// ---- selection of rows

const boxes = () => [...document.querySelectorAll("[data-row] input[type=checkbox][name=id]")];
const selectAll = document.querySelector("[data-select-all]");
const bulk = document.querySelector("[data-bulk]");
function selected() {
  const all = boxes();
  const chosen = all.filter((box) => box.checked);
  for (const box of all) box.closest("[data-row]").setAttribute("aria-selected", box.checked);
  if (selectAll) {
    selectAll.checked = chosen.length > 0 && chosen.length === all.length;
    selectAll.indeterminate = chosen.length > 0 && chosen.length < all.length;
  }
  if (bulk) {
    bulk.hidden = chosen.length === 0;
    const count = bulk.querySelector("[data-selected]");
    if (count) setText(count, String(chosen.length));
    if (chosen.length) countAll();
  }
}
// Where the page does not know how many jobs match, the page behind the link counts them.
let uncounted = bulk?.querySelector("[data-count-all]");
async function countAll() {
  if (!uncounted) return;
  const link = uncounted;
  uncounted = null;
  try {
    const answer = await fetch(link.href, { headers: { accept: "text/html" }, credentials: "same-origin" });
    const counted = parse(await answer.text()).querySelector("[data-all]");
    if (counted) setText(link, `Select ${counted.dataset.all}…`);
  } catch {
    // The link keeps the bound that it has.
  }
}
document.addEventListener("change", (event) => {
  if (event.target === selectAll) for (const box of boxes()) box.checked = selectAll.checked;
  if (event.target.matches("input[type=checkbox]")) selected();
});
document.querySelector("[data-clear]")?.addEventListener("click", () => {
  for (const box of boxes()) box.checked = false;
  selected();
});
if (bulk) selected();

// ---- forms: one submit, and what happens meanwhile

document.addEventListener("submit", (event) => {
  const button = event.submitter;
  if (event.target.method !== "post" || !button || event.target.dataset.sent) {
    if (event.target.dataset.sent) event.preventDefault();
    return;
  }
  event.target.dataset.sent = "1";
  if (button.dataset.busy) setText(button, button.dataset.busy);
  // A page from the back-forward cache can be used again.
  addEventListener("pageshow", () => delete event.target.dataset.sent, { once: true });
});

// Buttons that need a typed name stay disabled until it matches.
for (const input of document.querySelectorAll("[data-type-to-confirm]")) {
  const button = input.form?.querySelector("[data-confirmed]:not([disabled])");
  const check = () => button && (button.disabled = input.value !== input.dataset.typeToConfirm);
  input.addEventListener("input", check);
  check();
}

// ---- the theme switches at once and is kept by the server

document.querySelector("[data-theme-switch]")?.addEventListener("click", async (event) => {
  event.preventDefault();
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  const fields = new URLSearchParams(new FormData(event.currentTarget.form));
  fields.set("theme", root.dataset.theme);
  await fetch(`${base}/theme`, { method: "POST", body: fields, redirect: "manual", headers: { accept: "text/html" } });
});

// ---- an action that can be undone, for ten seconds

const undo = document.querySelector("[data-undo]");
if (undo) {
  const toast = undo.closest("[data-flash]");
  const button = undo.querySelector("button");
  toast.classList.add("toast");
  let left = 10;
  const count = () => {
    if (button.disabled) return;
    if (left <= 0) {
      toast.remove();
      return;
    }
    // A toast that someone is about to use stays.
    if (!toast.matches(":hover, :focus-within")) left -= 1;
    setText(button, `Undo (${left + 1}${SPACE}s)`);
    setTimeout(count, 1000);
  };
  count();
}
