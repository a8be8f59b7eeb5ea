/* What the dashboard adds where JavaScript runs. Everything reads and acts without it too.
   1. live: one stream of events for this tab, closed while the tab is hidden; fresh HTML is morphed in place
   2. ask first: forms with data-confirm open a dialog; forms with data-quiet-post are sent without leaving the page
   3. selection of rows with a bar of bulk actions        4. theme, menu, keyboard, tips, times */
"use strict";

const root = document.documentElement;
const shortcuts = document.getElementById("shortcuts");
const prefix = document.querySelector('meta[name="prefix"]')?.content ?? "";
const reduced = matchMedia("(prefers-reduced-motion: reduce)").matches;
root.classList.remove("no-script");

/* --- times -------------------------------------------------------------------------------------------------- */

let clockSkew = 0;  // of this machine's clock from the server's, in ms; ticks tell

function span(seconds) {
  const size = Math.round(Math.abs(seconds));
  if (size < 1) return "now";
  if (size < 60) return `${size} s`;
  if (size < 3600) return `${Math.floor(size / 60)} min`;
  const [count, unit, rest, smaller] = size < 86400
    ? [Math.floor(size / 3600), "h", Math.floor((size % 3600) / 60), "min"]
    : [Math.floor(size / 86400), "d", Math.floor((size % 86400) / 3600), "h"];
  return rest ? `${count} ${unit} ${rest} ${smaller}` : `${count} ${unit}`;
}

const zone = Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC";
const forms = {
  clock: new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit" }),
  day: new Intl.DateTimeFormat("en-GB", { month: "short", day: "2-digit" }),
  whole: new Intl.DateTimeFormat("sv-SE", { dateStyle: "short", timeStyle: "medium" }),
  step: new Intl.DateTimeFormat("en-GB", { month: "short", day: "2-digit", hour: "2-digit", minute: "2-digit" }),
};

function utc(at) {
  return `${at.toISOString().slice(0, 19).replace("T", " ")} UTC`;
}

function tellInstants(scope = document) {
  const set = (node, text) => { if (node.textContent !== text) node.textContent = text; };
  for (const time of scope.querySelectorAll("time:not([data-relative])")) {
    const at = new Date(time.dateTime);
    set(time, forms.whole.format(at));
    time.title = utc(at);
  }
  for (const label of scope.querySelectorAll(".plot-x text[data-at]")) {
    set(label, forms[label.dataset.form].format(new Date(label.dataset.at)));
  }
  for (const named of scope.querySelectorAll("[data-zone]")) set(named, zone);
}

function tellTimes(scope = document) {
  const now = Date.now() + clockSkew;
  for (const time of scope.querySelectorAll("time[data-relative]")) {
    const at = new Date(time.dateTime);
    const seconds = (at - now) / 1000;
    const text = Math.abs(seconds) < 1 ? "now" : seconds > 0 ? `in ${span(seconds)}` : `${span(seconds)} ago`;
    if (time.textContent !== text) time.textContent = text;
    time.title = `${forms.whole.format(at)} ${zone}\n${utc(at)}`;
  }
}

/* --- morphing: make one tree like another and touch nothing that is alike ------------------------------------- */

function alike(one, other) {
  return one.nodeType === other.nodeType && one.nodeName === other.nodeName && (one.id || "") === (other.id || "");
}

function keyOf(node) {
  return node.nodeType === 1 ? node.id || node.dataset?.key || "" : "";
}

function morph(now, fresh) {
  if (now.nodeType === 3) {
    if (now.data !== fresh.data) now.data = fresh.data;
    return;
  }
  if (now.nodeType !== 1 || now.isEqualNode(fresh) || now.hasAttribute("data-keep")) return;
  for (const { name } of [...now.attributes]) {
    const held = name === "open" || name === "aria-selected" || (name === "class" && now === document.body);
    if (!held && !fresh.hasAttribute(name)) now.removeAttribute(name);
  }
  for (const { name, value } of fresh.attributes) {
    if (name !== "open" && name !== "nonce" && now.getAttribute(name) !== value) now.setAttribute(name, value);
  }
  if (now.matches("input, textarea, select")) return;
  morphChildren(now, fresh);
}

function morphChildren(now, fresh) {
  const keyed = new Map([...now.childNodes].filter(keyOf).map((node) => [keyOf(node), node]));
  let at = now.firstChild;
  for (const wanted of [...fresh.childNodes]) {
    const key = keyOf(wanted);
    const known = key ? keyed.get(key) : at && !keyOf(at) && alike(at, wanted) ? at : null;
    if (!known) {
      now.insertBefore(document.importNode(wanted, true), at);
      continue;
    }
    keyed.delete(key);  // a second part with this key is another one
    if (known !== at) now.insertBefore(known, at);
    else at = at.nextSibling;
    if (known.nodeType === wanted.nodeType && known.nodeName === wanted.nodeName) morph(known, wanted);
    else known.replaceWith(document.importNode(wanted, true));
  }
  while (at) {
    const next = at.nextSibling;
    if (!(at.nodeType === 1 && at.contains(document.activeElement) && at.matches("dialog"))) at.remove();
    at = next;
  }
}

let questions = 0;  // open ones: what is asked about stays as it is until it is answered, and the answer sent

function show(html) {
  if (questions) return;
  const fresh = new DOMParser().parseFromString(html, "text/html");
  for (const part of document.querySelectorAll("[data-live][id]")) {
    if (part.contains(document.querySelector("dialog[open]"))) continue;
    const found = fresh.getElementById(part.id);
    if (found) morph(part, found);
  }
  tellInstants();
  tellTimes();
  selection();
}

/* --- live --------------------------------------------------------------------------------------------------------- */

const sign = document.getElementById("live-sign");
let stream = null;
let wanted = sessionStorage.getItem("live") !== "off";
let fetching = null;
let lost = false;  // whether the page no longer follows, which the sign says in a word and a bar in a sentence

function tell(state, text) {
  if (!sign) return;
  sign.dataset.state = state;
  sign.firstElementChild.textContent = text;
}

/* The page follows again. */
function follow() {
  lost = false;
  document.getElementById("lost")?.remove();
  if (stream?.readyState === EventSource.OPEN) tell("live", "live");
}

/* The page stays as it is: the server or the dashboard is away, the session has ended, or what the page shows has left
   the server. The bar is there because numbers of a while ago look like those of now, and a phone folds the sign away. */
function lose(word, why) {
  lost = true;
  tell("lost", word);
  let bar = document.getElementById("lost");
  if (!bar) {
    bar = document.createElement("div");
    bar.id = "lost";
    bar.className = "note-bar bad";
    bar.setAttribute("role", "status");
    bar.append(document.createElement("div"));
    document.getElementById("main").prepend(bar);
  }
  const said = `${why.charAt(0).toUpperCase()}${why.slice(1).replace(/\.$/, "")}. What this page shows was read before that.`;
  if (bar.firstChild.textContent !== said) bar.firstChild.textContent = said;
}

const LOGGED_OUT = ["signed out", "you are logged out: reload the page to log in"];
const SILENT = ["disconnected", "the dashboard does not answer"];

function why(html) {
  return new DOMParser().parseFromString(html, "text/html").querySelector(".trouble p")?.textContent || "this page cannot be read";
}

async function refresh() {
  if (fetching || document.hidden) return;
  fetching = new AbortController();
  try {
    const answer = await fetch(location.href, { headers: { "X-Live": "1" }, signal: fetching.signal, redirect: "manual" });
    if (answer.type === "opaqueredirect" || answer.status === 401) return lose(...LOGGED_OUT);
    const html = await answer.text();
    if (!answer.ok) return lose(answer.status === 404 ? "gone" : "not updated", why(html));
    show(html);
    follow();
  } catch (error) {
    if (error.name !== "AbortError") lose(...SILENT);
  } finally {
    fetching = null;
  }
}

/* A page that could not be read when it was opened has nothing that live updates could replace. */
const unread = document.querySelector("[data-again]");

async function openAgain() {
  try {
    const answer = document.hidden ? null : await fetch(location.href, { headers: { "X-Live": "1" }, redirect: "manual" });
    if (answer && answer.status !== 503) return location.reload();
  } catch { /* the dashboard itself is away */ }
  setTimeout(openAgain, 3000);
}

if (unread) {
  unread.hidden = false;
  setTimeout(openAgain, 3000);
}

function listen() {
  if (stream || !sign || !wanted || document.hidden || !window.EventSource) return;
  stream = new EventSource(`${prefix}/live`);
  if (!lost) tell("joining", "connecting");
  stream.addEventListener("open", () => { if (!lost) tell("live", "live"); });
  stream.addEventListener("tick", (event) => {
    if (!lost) tell("live", "live");
    clockSkew = (JSON.parse(event.data).at || Date.now()) - Date.now();
    refresh();
  });
  stream.addEventListener("problem", (event) => lose("not updated", event.data || "the server cannot be read"));
  stream.addEventListener("error", () => {
    if (!lost) tell("lost", "disconnected");
    if (stream?.readyState !== EventSource.CLOSED) return refresh();  // it connects again, and the page says what is wrong
    stream = null;
    closed();
  });
}

/* The dashboard refused the stream, which an EventSource does not explain: asks once more, for the reason. */
async function closed() {
  try {
    const answer = await fetch(`${prefix}/live`, { headers: { Accept: "application/json" }, redirect: "manual" });
    if (answer.status === 401) return lose(...LOGGED_OUT);  // until this tab is opened again, maybe after a login in another
    if (answer.ok) answer.body.cancel();
    else lose("not live", (await answer.json()).error);
  } catch {
    lose(...SILENT);
  }
  setTimeout(listen, 5000);
}

function rest(text) {
  stream?.close();
  stream = null;
  fetching?.abort();
  tell("paused", text);
}

document.addEventListener("visibilitychange", () => {
  if (document.hidden) rest("paused");
  else if (wanted) { listen(); refresh(); }
});
document.getElementById("live-switch")?.addEventListener("click", (event) => {
  wanted = !wanted;
  sessionStorage.setItem("live", wanted ? "on" : "off");
  event.currentTarget.setAttribute("aria-pressed", String(wanted));
  event.currentTarget.textContent = wanted ? "Pause" : "Resume";
  if (wanted) listen();
  else rest("paused");
});
addEventListener("pagehide", () => rest("paused"));

/* --- forms: ask first, then send ------------------------------------------------------------------------------------ */

const asking = document.getElementById("ask");
let answered = null;  // takes the answer to the question that is open

function ask(form, button, words) {
  answered?.(false);  // the dialog is closed, and the event that says so still to come
  asking.querySelector("h2").textContent = words.confirm;
  asking.querySelector("p").textContent = words.consequence || "";
  const sure = asking.querySelector("[value=yes]");
  sure.textContent = words.verb || button?.textContent.trim() || "Yes";
  sure.className = (button ?? form).matches(".danger, [data-danger]") ? "danger" : "primary";
  asking.returnValue = "";
  asking.showModal();
  return new Promise((resolve) => { answered = resolve; });
}

asking?.addEventListener("close", () => {
  if (asking.open) return;  // the event of a question before this one
  answered?.(asking.returnValue === "yes");
  answered = null;
});

document.addEventListener("submit", async (event) => {
  const form = event.target;
  const button = event.submitter;
  const words = { ...form.dataset, ...button?.dataset };
  if (form.method !== "post" || form.dataset.asked === "yes" || !words.confirm || !asking?.showModal) return;
  event.preventDefault();
  questions += 1;
  try {
    if (!(await ask(form, button, words))) return button?.focus();
    form.dataset.asked = "yes";
    form.requestSubmit(button);
    delete form.dataset.asked;
  } finally {
    questions -= 1;
  }
});

function toast(text, bad = false) {
  const place = document.querySelector(".toasts");
  if (!place || !text) return;
  const said = document.createElement("div");
  said.className = bad ? "toast bad" : "toast";
  said.textContent = text;
  place.append(said);
  setTimeout(() => said.remove(), bad ? 12000 : 6000);
}

/* --- a search goes on by itself until a page is full; Stop ends that, and the link goes on ------------------------- */

const PAGE = 50;
let searching = null;

function frozen() {  // live updates would put the first piece in place of all
  for (const id of ["tasks", "pages", "searching", "found", "kept"]) document.getElementById(id)?.setAttribute("data-keep", "");
}

function takeRows(fresh) {
  const here = document.getElementById("tasks");
  const more = fresh.getElementById("tasks");
  const rows = [...(more?.querySelectorAll("tbody tr") ?? [])];
  const body = here.querySelector("tbody");
  if (body && rows.length) body.append(...rows.map((row) => document.importNode(row, true)));
  else if (!body && more) here.replaceChildren(...[...more.childNodes].map((node) => document.importNode(node, true)));
}

function replaced(id, fresh) {
  const part = document.getElementById(id);
  const other = fresh.getElementById(id);
  if (part && other) part.replaceChildren(...[...other.childNodes].map((node) => document.importNode(node, true)));
}

async function searchOn() {
  for (let bar; (bar = document.querySelector("#searching [data-next]")) && !searching?.signal.aborted;) {
    if (document.querySelectorAll("#tasks tbody tr").length >= PAGE) return stopSearch();
    bar.querySelector("[data-stop]").hidden = false;
    bar.querySelector("[data-onward]").hidden = true;
    searching ??= new AbortController();
    frozen();
    try {
      const answer = await fetch(bar.dataset.next, { headers: { "X-Live": "1" }, signal: searching.signal, redirect: "manual" });
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
      if (!answer.ok) return lostSearch(fresh.querySelector("main p")?.textContent.trim() || `answer ${answer.status}`);
      takeRows(fresh);
      for (const id of ["pages", "searching", "found"]) replaced(id, fresh);
    } catch (error) {
      return error.name === "AbortError" ? undefined : lostSearch("the dashboard does not answer");
    }
    tellTimes();
    selection();
  }
}

function stopSearch() {
  searching?.abort();
  const bar = document.querySelector("#searching [data-next]");
  if (!bar) return;
  bar.querySelector("[data-stop]").hidden = true;
  bar.querySelector("[data-onward]").hidden = false;
}

function lostSearch(why) {
  stopSearch();
  const bar = document.querySelector("#searching [data-next]");
  if (!bar) return;
  bar.classList.add("bad");
  bar.querySelector("[data-said]").textContent += `. Stopped: ${why}. What is above is not all.`;
}

document.addEventListener("click", (event) => {
  if (event.target.closest?.("[data-stop]")) stopSearch();
  const fold = event.target.closest?.("[data-fold]");
  if (fold) fold.setAttribute("aria-expanded", String(fold.form.classList.toggle("open")));
});

/* --- selection ------------------------------------------------------------------------------------------------------------ */

function selection() {
  const bar = document.querySelector(".bulk");
  if (!bar) return;
  const boxes = [...document.querySelectorAll('input[name="ids"][type="checkbox"]')];
  const chosen = boxes.filter((box) => box.checked);
  const every = bar.querySelector('input[name="all"]')?.checked;
  for (const box of boxes) box.closest("tr")?.setAttribute("aria-selected", String(box.checked || Boolean(every)));
  const all = document.getElementById("select-page");
  if (all) {
    all.checked = boxes.length > 0 && chosen.length === boxes.length;
    all.indeterminate = chosen.length > 0 && chosen.length < boxes.length;
  }
  bar.hidden = !boxes.length;  // rows come with a search that goes on, and with live updates
  const count = bar.querySelector("[data-count]");
  if (count) count.textContent = every ? bar.dataset.all : chosen.length ? `${chosen.length} selected` : "Select tasks, or all that match";
  bar.classList.toggle("some", Boolean(every) || chosen.length > 0);
  for (const button of bar.querySelectorAll("button[data-needs]")) button.disabled = !every && !chosen.length;
}

let lastBox = null;
document.addEventListener("click", (event) => {
  const box = event.target.closest?.('input[name="ids"][type="checkbox"]');
  if (!box) return;
  const boxes = [...document.querySelectorAll('input[name="ids"][type="checkbox"]')];
  if (event.shiftKey && lastBox && boxes.includes(lastBox)) {
    const [from, to] = [boxes.indexOf(lastBox), boxes.indexOf(box)].sort((a, b) => a - b);
    for (const one of boxes.slice(from, to + 1)) one.checked = box.checked;
  }
  lastBox = box;
});
document.addEventListener("change", (event) => {
  if (event.target.id === "select-page") {
    for (const box of document.querySelectorAll('input[name="ids"][type="checkbox"]')) box.checked = event.target.checked;
  }
  if (event.target.matches("select[data-go]")) event.target.form.requestSubmit();
  selection();
});

/* --- theme, menu, copying ------------------------------------------------------------------------------------------------------ */

function keepTheme(theme) {
  const path = prefix || "/";
  if (theme) root.dataset.theme = theme;
  else delete root.dataset.theme;
  document.cookie = `jobrunner_theme=${theme}; path=${path}; SameSite=Lax; max-age=${theme ? 31536000 : 0}`;
}

document.getElementById("help")?.addEventListener("click", () => shortcuts?.showModal());
document.getElementById("theme")?.addEventListener("click", () => {
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  keepTheme(dark ? "light" : "dark");
});
const menu = document.querySelector(".menu");

function setMenu(open) {
  document.querySelector(".side").classList.toggle("open", open);
  menu.setAttribute("aria-expanded", String(open));
}

function closeMenu() {
  if (menu?.getAttribute("aria-expanded") !== "true") return;
  setMenu(false);
  menu.focus();
}

menu?.addEventListener("click", () => setMenu(menu.getAttribute("aria-expanded") !== "true"));
document.addEventListener("click", async (event) => {
  const button = event.target.closest?.("[data-copy]");
  if (!button) return;
  try {
    await navigator.clipboard.writeText(button.dataset.copy);
    toast("Copied");
  } catch {
    toast("The browser did not allow copying", true);
  }
});

/* --- tips of plots ------------------------------------------------------------------------------------------------------------------ */

let tip = null;
document.addEventListener("pointermove", (event) => {
  const spot = event.target.closest?.("[data-tip]");
  if (!spot) { tip?.remove(); tip = null; return; }
  spot.querySelector("title")?.remove();
  if (!tip) { tip = document.createElement("div"); tip.className = "tip"; document.body.append(tip); }
  const [start, ...values] = spot.dataset.tip.split(" · ");
  const at = spot.dataset.at;
  tip.textContent = [at ? `${forms.step.format(new Date(at))} ${zone}` : start, ...values].join("\n");
  const card = spot.closest(".card")?.getBoundingClientRect() ?? { left: 0, right: innerWidth };
  const right = Math.min(card.right, innerWidth) - tip.offsetWidth - 8;
  const left = event.clientX + 14 > right ? event.clientX - tip.offsetWidth - 14 : event.clientX + 14;
  tip.style.left = `${Math.max(left, card.left + 8, 8)}px`;
  tip.style.top = `${Math.max(event.clientY - tip.offsetHeight - 12, 8)}px`;
});

document.addEventListener("click", (event) => {
  const { at, until } = event.target.closest?.("svg.plot-area [data-at]")?.dataset ?? {};
  if (!at) return;
  const queue = document.querySelector("main [data-queue]")?.dataset.queue;
  const asked = new URLSearchParams({ since: at, until: until ?? new Date(Date.now() + clockSkew).toISOString() });
  if (queue) asked.set("queue", queue);
  location.assign(`${prefix}/tasks?${asked}`);
});

/* --- keyboard: ? shows what there is; g and a letter goes to a page ------------------------------------------------------------------- */

let going = 0;
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (document.querySelector("dialog[open]")) return;
  if (event.target.matches?.("input:not([type=checkbox]), textarea, select")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  if (event.key === "Escape") closeMenu();
  if (going && Date.now() - going < 1500) {
    going = 0;
    const link = document.querySelector(`.side a[data-go="${CSS.escape(event.key)}"]`);
    if (link) { event.preventDefault(); link.click(); }
    return;
  }
  if (event.key === "g") going = Date.now();
  else if (event.key === "?") { event.preventDefault(); shortcuts?.showModal(); }
  else if (event.key === "/") {
    const field = document.querySelector('input[type="search"]');
    event.preventDefault();
    if (field) { field.focus(); field.select(); }
    else document.querySelector('.side a[data-go="t"]')?.click();
  }
  else if (event.key === "p") document.getElementById("live-switch")?.click();
  else if (event.key === "t") document.getElementById("theme")?.click();
  else if (event.key === "j" || event.key === "k") step(event.key === "j" ? 1 : -1);
  else if (event.key === "x") document.activeElement?.closest?.("tr")?.querySelector('input[name="ids"]')?.click();
});

function step(by) {
  const rows = [...document.querySelectorAll("main a.row-link")];
  if (!rows.length) return;
  const at = rows.indexOf(document.activeElement?.closest?.("tr")?.querySelector("a.row-link"));
  const next = rows[Math.min(Math.max(at + by, 0), rows.length - 1)];
  next.focus({ preventScroll: true });
  next.scrollIntoView({ block: "nearest", behavior: reduced ? "auto" : "smooth" });
}

tellInstants();
tellTimes();
setInterval(tellTimes, 1000);
selection();
const pressed = document.getElementById("live-switch");
if (pressed && !wanted) { pressed.setAttribute("aria-pressed", "false"); pressed.textContent = "Resume"; rest("paused"); }
listen();
searchOn();
