// Keeps the page fresh: a socket says that something is newer, then the page is fetched again from its own address and
// its live parts are put in place. News carries no data; what was missed while the page was away is said again, and after
// a lost connection the page is fetched again in any case, since what says the news may have been away as well.

import { startTabs } from "./controls.js";
import { openSocket } from "./socket.js";

const GAP_MS = 900;
const WORDS = { live: "Live", waiting: "Connecting", off: "Offline", paused: "Paused" };

let refreshId = 0;
let lastRefreshAt = 0;
let isFetching = false;
let changes = 0; // answered to this page; what was fetched before one of them would put the old value back
let state = "waiting"; // of the socket
let isLost = false;

export function startLive({ news, since }) {
  document.body.addEventListener("htmx:afterRequest", countChange);
  if (news) openSocket(news, { since, onMessage: hear, onState: show });
}

function countChange({ detail }) {
  if (detail.requestConfig.verb !== "get") changes += 1;
}

function show(next) {
  if (next === "live" && isLost) scheduleRefresh();
  isLost = (next === "waiting" || next === "off") && (isLost || state === "live");
  state = next;
  const dot = document.getElementById("live");
  if (!dot) return;
  dot.dataset.state = state;
  dot.firstElementChild.textContent = WORDS[state];
  dot.title = WORDS[state];
}

function hear({ kind, id }) {
  document.body.dispatchEvent(new CustomEvent(`news-${kind}`, { detail: { id } }));
  scheduleRefresh();
}

function scheduleRefresh() {
  if (refreshId || !document.querySelector("[data-live], [data-live-rows], [data-live-append]")) return;
  const wait = Math.max(60, lastRefreshAt + GAP_MS - Date.now());
  refreshId = setTimeout(refresh, wait);
}

async function refresh() {
  refreshId = 0;
  if (isFetching) return scheduleRefresh();
  isFetching = true;
  const before = changes;
  try {
    const answer = await fetch(pageAddress(), { redirect: "error" });
    const page = await answer.text();
    if (before !== changes) scheduleRefresh();
    else if (answer.ok) put(new DOMParser().parseFromString(page, "text/html"));
  } catch {
    show("waiting"); // The socket's own close says whether we are really away.
  } finally {
    isFetching = false;
    lastRefreshAt = Date.now();
  }
}

// A form on the page shows what its own settings would do, so these belong to the address.
function pageAddress() {
  return location.pathname + location.search;
}

function put(fresh) {
  for (const part of document.querySelectorAll("[data-live][id]")) replacePart(part, fresh.getElementById(part.id));
  for (const box of document.querySelectorAll("[data-live-add], [data-live-append]")) appendNew(box, fresh.getElementById(box.id));
  for (const rows of document.querySelectorAll("[data-live-rows]")) updateRows(rows, fresh.getElementById(rows.id));
  document.dispatchEvent(new CustomEvent("live:refreshed"));
}

// What someone presses, has opened or is filling in stays as it is until the next news.
function isBusy(part) {
  if (part.matches(".htmx-request, :has(.htmx-request)")) return true; // Its own answer comes, with a toast that needs its sender.
  if (isPressed(part)) return true;
  const active = document.activeElement;
  if (part.contains(active) && active.matches("input, textarea, select, summary")) return true;
  return Boolean(part.querySelector("details[open]:not(.menu)"));
}

// What was said when the page came goes with the first news of how it went on.
function dropPassing() {
  for (const said of document.querySelectorAll("[data-passing]")) said.remove();
}

function replacePart(part, fresh) {
  if (!fresh || part.dataset.seen === fresh.innerHTML || isBusy(part)) return;
  if (part.tagName !== fresh.tagName) {
    replaceSheet(part, fresh);
    return;
  }
  if (part.textContent !== fresh.textContent) dropPassing();
  part.dataset.seen = fresh.innerHTML;
  const focused = part.contains(document.activeElement) ? document.activeElement.id : "";
  part.replaceChildren(...adopt(fresh));
  if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
  window.htmx?.process(part);
  startTabs(part);
}

// What was empty has its first row, or the other way round: the words and the table change places.
function replaceSheet(part, fresh) {
  const sheet = part.closest(".sheet");
  if (isBusy(sheet)) return;
  sheet.replaceChildren(...adopt(fresh.closest(".sheet")));
  window.htmx?.process(sheet);
  startTabs(sheet);
}

// A click is a press and a release on the same element; one that was replaced in between would swallow it.
function isPressed(part) {
  if (!part.matches(":active")) return false;
  document.addEventListener("pointerup", scheduleRefresh, { once: true });
  return true;
}

function adopt(fresh) {
  return [...fresh.childNodes].map((node) => document.importNode(node, true));
}

// Steps and charts are added in their place; those that stand do not move.
function appendNew(box, fresh) {
  if (!fresh) return;
  let last = null;
  for (const child of [...fresh.children]) {
    const known = child.id && document.getElementById(child.id);
    if (known) {
      last = known;
      continue;
    }
    if (!child.id) continue;
    const added = document.importNode(child, true);
    if (last && last.parentElement === box) last.after(added);
    else box.append(added);
    window.htmx?.process(added);
    last = added;
  }
  for (const gone of box.querySelectorAll(":scope > .empty")) if (!fresh.querySelector(`#${gone.id}`)) gone.remove();
}

function isHeld(row) {
  return row.contains(document.activeElement) || isPressed(row);
}

// Known rows take new values where they stand; new rows wait behind the pill.
function updateRows(rows, fresh) {
  if (!fresh) return;
  const unseen = [];
  for (const row of fresh.rows) {
    const known = document.getElementById(row.id);
    if (!known) unseen.push(row);
    else if (known.innerHTML !== row.innerHTML && !isHeld(known)) known.replaceChildren(...adopt(row));
  }
  const pill = document.getElementById("new-pill");
  if (!pill) return;
  pill.hidden = unseen.length === 0;
  pill.textContent = `${unseen.length === fresh.rows.length ? `${unseen.length}+` : unseen.length} new`;
  pill.onclick = () => {
    rows.replaceChildren(...adopt(fresh));
    pill.hidden = true;
    window.scrollTo({ top: 0, behavior: "smooth" });
    document.dispatchEvent(new CustomEvent("live:refreshed"));
  };
}
