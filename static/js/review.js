// The desk: one item and its form. The next item is fetched ahead, a press answers at once, and what was said is sent
// meanwhile: "saving", "saved 14:02", or "not saved" with what to do. Without this file all of it works by plain forms.

import { ask, LoggedOutError, tell } from "./asking.js";
import { writeMinute, writeMoment } from "./clock.js";
import { dropDraft, dropFromOutbox, putIntoOutbox, readOutbox, restoreDraft, saveDraft, sweepDrafts } from "./review_keep.js";
import { firstOpenBox, focusForm, isAnswered, markBox, startReviewKeys } from "./review_keys.js";
import { openSocket } from "./socket.js";
import { showToast } from "./toast.js";

const RENEW_MS = 120_000;
const TALLY_MS = 1200;
const COUNTED = { submit: { done: 1, left: -1 }, skip: { done: 0, left: -1 } }; // what a press adds at once

const work = document.getElementById("work");
let ahead = null; // { id, node }: the item after this one
let lastId = work?.dataset.last ?? "";
let noUndo = work?.dataset.noUndo ?? ""; // why there is no last one
let shownAt = Date.now();
let sending = Promise.resolve();
let tallyId = 0;
let tallyTurn = 0; // a tally that was asked for before the last press, its answer or the last question is old

if (work?.dataset.work) start();

function start() {
  sweepDrafts();
  startReviewKeys({ submit, undo, skip: () => giveUp("skip"), putBack: () => giveUp("requeue") });
  work.addEventListener("submit", onSubmit);
  work.addEventListener("input", onInput);
  setInterval(showTime, 1000);
  setInterval(renew, RENEW_MS);
  for (const moment of ["online", "focus"]) window.addEventListener(moment, sendAgain); // focus: back from a login
  openSocket(work.dataset.socket, { since: work.dataset.since, onMessage: hear });
  settle();
  sendAgain().then(fetchAhead);
}

function desk() {
  return document.getElementById("desk");
}

function form() {
  return document.getElementById("review-form");
}

// After an item was put on the desk.
function settle() {
  shownAt = Date.now();
  const review = desk().dataset.review;
  if (!form()) return;
  if (restoreDraft(review, form())) say("Draft restored");
  markBox(firstOpenBox() ?? form().querySelector("[data-box]"));
  focusForm();
  showTime();
}

function show(node) {
  if (ahead?.id === node.dataset.review) ahead = null; // it came ahead while it was asked for
  desk().replaceWith(node);
  window.htmx?.process(node);
  window.scrollTo({ top: 0 });
  settle();
}

async function fetchDesk(query) {
  const answer = await ask(`${work.dataset.work}?${query}`);
  if (!answer.ok) throw new Error(`the platform answered ${answer.status}`);
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const node = document.importNode(page.getElementById("desk"), true);
  return { id: node.dataset.review, node };
}

async function fetchAhead() {
  const here = desk().dataset.review;
  if (!here) return;
  try {
    const found = await fetchDesk(new URLSearchParams({ ahead: here }));
    const isOld = desk().dataset.review !== here || found.id in readOutbox();
    if (!isOld) ahead = found;
  } catch {
    ahead = null; // asked for when it is wanted
  }
}

// The next item: at once when it was fetched ahead.
async function advance() {
  const next = ahead;
  ahead = null;
  if (next?.id) {
    show(next.node);
    return;
  }
  form()?.setAttribute("inert", "");
  await sending;
  try {
    const found = await fetchDesk(new URLSearchParams({ part: "1" }));
    if (found.id && found.id in readOutbox()) throw new Error("not saved yet");
    show(found.node);
  } catch (error) {
    form()?.removeAttribute("inert");
    showUnsaved();
    if (document.getElementById("unsaved").hidden) say(`The next item did not come (${error.message}): reload the page`, "failed");
  }
}

function onSubmit(event) {
  const { target, submitter } = event;
  if (target.id === "undo-form") {
    event.preventDefault();
    undo();
  }
  if (target.id !== "review-form") return;
  event.preventDefault();
  if (submitter?.dataset.do) giveUp(submitter.dataset.do);
  else submit();
}

function onInput(event) {
  const box = event.target.closest("[data-box]");
  if (event.target.type === "number" && event.target.value) {
    for (const option of box.querySelectorAll("input[type=radio]")) option.checked = false;
  }
  box?.classList.remove("is-missing");
  document.getElementById("review-error").hidden = true;
  const review = desk().dataset.review;
  saveDraft(review, form());
  const waiting = readOutbox()[review];
  if (waiting?.action === "submit") putIntoOutbox(review, { ...waiting, body: formBody() }); // what is sent is what one sees
}

function submit() {
  const open = form() && firstOpenBox();
  if (!form() || form().hasAttribute("inert")) return true;
  if (open) {
    for (const box of form().querySelectorAll("[data-required]")) box.classList.toggle("is-missing", !isAnswered(box));
    complain(`Not submitted: “${open.querySelector("legend").textContent.trim()}” is not answered yet.`);
    markBox(open);
    focusForm();
    return true;
  }
  form().elements.seconds.value = Math.round((Date.now() - shownAt) / 1000);
  return send("submit");
}

function giveUp(action) {
  if (!form() || form().hasAttribute("inert")) return true;
  return send(action);
}

function send(action) {
  const review = desk().dataset.review;
  const url = form().dataset.act.replace("ACTION", action);
  const { person } = work.dataset;
  putIntoOutbox(review, { url, body: formBody(), action, person, title: document.querySelector("#desk h2")?.textContent.trim() ?? "" });
  sending = sending.then(() => post(review));
  const sent = sending;
  advance().then(() => sent).then(fetchAhead);
  return true;
}

function formBody() {
  const body = new URLSearchParams(new FormData(form()));
  body.delete("csrfmiddlewaretoken"); // what is sent later is sent with the token of that time
  return body.toString();
}

// Sends one review of the outbox; it leaves the outbox when the platform has it, or has said why it will not. Meanwhile
// it cannot be edited: that would not be sent.
async function post(review) {
  const waiting = readOutbox()[review];
  if (!waiting) return;
  const shown = desk().dataset.review === review ? form() : null;
  const isWaitedFor = shown?.hasAttribute("inert"); // `advance` goes on when it is sent
  shown?.setAttribute("inert", "");
  say("Saving…");
  tallyTurn += 1;
  let answer;
  try {
    answer = await tell(waiting.url, new URLSearchParams(waiting.body));
    const said = await answer.json();
    if (answer.ok) {
      accept(review, waiting, said);
      if (shown?.isConnected && !isWaitedFor) advance(); // it was sent again, and nothing had come ahead
      return;
    }
    putIntoOutbox(review, { ...waiting, error: said.error });
  } catch (error) {
    putIntoOutbox(review, { ...waiting, error: "", isOut: error instanceof LoggedOutError });
  }
  if (!isWaitedFor) shown?.removeAttribute("inert");
  say("Not saved", "failed");
  showUnsaved();
}

function accept(review, waiting, said) {
  dropFromOutbox(review);
  dropDraft(review);
  if (waiting.action !== "requeue") {
    lastId = review;
    document.getElementById("undo").disabled = false;
    document.getElementById("undo").title = "";
  }
  const now = new Date();
  say(`Saved ${writeMinute(now)}`);
  document.getElementById("saved").title = writeMoment(now);
  if (waiting.action === "submit" && new URLSearchParams(waiting.body).has("wants_second")) showToast({ text: said.message });
  count(COUNTED[waiting.action]);
  hear();
  showUnsaved();
}

async function sendAgain() {
  for (const [review, waiting] of waitingHere()) {
    if (waiting.error) continue; // it was refused: a person must look
    sending = sending.then(() => post(review));
  }
  await sending;
  showUnsaved();
}

// What this person wrote in this queue: another queue's page sends its own, and who else uses this browser theirs.
function waitingHere() {
  const { work: address, person } = work.dataset;
  return Object.entries(readOutbox()).filter(([, one]) => one.url.startsWith(address) && one.person === person);
}

// What is not saved: it waits for the network, or was refused for a reason.
function showUnsaved() {
  const place = document.getElementById("unsaved");
  const mine = waitingHere().filter(([, one]) => one.error !== undefined);
  place.replaceChildren();
  place.hidden = mine.length === 0;
  const lost = mine.filter(([, one]) => !one.error);
  if (lost.length) {
    const words = document.createElement("p");
    const isOut = lost.some(([, one]) => one.isOut);
    words.textContent = `Not saved: ${isOut ? "you are logged out" : "the platform does not answer"}. ${lost.length === 1 ? "One review waits" : `${lost.length} reviews wait`} in this browser.`;
    place.append(words, ...(isOut ? [loginLink()] : []), button("Retry", sendAgain));
  }
  for (const [review, one] of mine.filter(([, waiting]) => waiting.error)) place.append(describeRefused(review, one));
}

function describeRefused(review, one) {
  const part = document.createElement("div");
  const words = document.createElement("p");
  words.textContent = `Not saved (${one.title.slice(0, 60)}): ${one.error}.`;
  const kept = document.createElement("details");
  const summary = document.createElement("summary");
  summary.textContent = "What I wrote";
  const list = document.createElement("pre");
  list.textContent = [...new URLSearchParams(one.body)]
    .filter(([name, value]) => /^[vnt]-/.test(name) && value)
    .map(([name, value]) => `${name.slice(2)}: ${value}`)
    .join("\n");
  kept.append(summary, list);
  const drop = button("Discard", () => {
    dropFromOutbox(review);
    dropDraft(review);
    showUnsaved();
  });
  part.append(words, kept, drop);
  return part;
}

function loginLink() {
  const made = document.createElement("a");
  made.href = work.dataset.login;
  made.target = "_blank";
  made.className = "button small";
  made.textContent = "Log in";
  return made;
}

function button(words, action) {
  const made = document.createElement("button");
  made.type = "button";
  made.className = "button small";
  made.textContent = words;
  made.addEventListener("click", action);
  return made;
}

function undo() {
  const review = lastId;
  if (!review) {
    showToast({ text: noUndo });
    return true;
  }
  sending = sending.then(() => takeBack(review));
  return true;
}

async function takeBack(review) {
  say("Undoing…");
  try {
    const answer = await tell(work.dataset.undo.replace("REVIEW", review));
    const said = await answer.json();
    if (!answer.ok) throw new Error(said.error);
    lastId = "";
    noUndo = "Your last review is undone already. Reload the page to undo the one before it.";
    document.getElementById("undo").disabled = true;
    document.getElementById("undo").title = noUndo;
    ahead = null;
    // Counted before the item comes: what is pressed next is added to it.
    const [found] = await Promise.all([fetchDesk(new URLSearchParams({ part: "1" })), readTally()]);
    show(found.node);
    say("Undone");
    hear();
    fetchAhead();
  } catch (error) {
    say("Not undone", "failed");
    const lost = error instanceof TypeError;
    showToast({ text: lost ? "Not undone: the platform does not answer. Try again in a moment." : `Not undone: ${error.message}.`, kind: "error" });
  }
}

function say(words, state = "") {
  const place = document.getElementById("saved");
  place.textContent = words;
  place.dataset.state = state;
}

function complain(words) {
  const place = document.getElementById("review-error");
  place.textContent = words;
  place.hidden = false;
}

function showTime() {
  const seconds = Math.floor((Date.now() - shownAt) / 1000);
  document.getElementById("timer").textContent = `${Math.floor(seconds / 60)}:${String(seconds % 60).padStart(2, "0")}`;
}

// A guess until the platform tells: the answer to a press does not wait for counting.
function count(change) {
  if (!change) return;
  tallyTurn += 1;
  const bar = document.getElementById("tally-bar");
  showTally({ done: bar.value + change.done, left: Math.max(bar.max - bar.value + change.left, 0), state: "open" });
}

function showTally({ done, left, state }) {
  document.getElementById("tally-done").textContent = done.toLocaleString("en");
  document.getElementById("tally-left").textContent = left.toLocaleString("en");
  const bar = document.getElementById("tally-bar");
  bar.max = Math.max(done + left, 1);
  bar.value = done;
  if (state !== "open") showToast({ text: `This queue is ${state} now: what you have open can still be submitted.` });
}

// Somebody, or I, did something in this queue: what is left for me may have changed. However much happens, it is asked
// every so often; and not while a press is under way, which the answer would have already or not yet.
function hear() {
  tallyId ||= setTimeout(async () => {
    tallyId = 0;
    await sending;
    const isHeard = await readTally();
    if (!form() && isHeard) advance();
  }, TALLY_MS);
}

// Says whether the platform answered.
async function readTally() {
  tallyTurn += 1;
  const turn = tallyTurn;
  try {
    const answer = await ask(work.dataset.tally);
    if (!answer.ok) return false;
    const told = await answer.json();
    if (turn === tallyTurn) showTally(told);
    return true;
  } catch {
    return false; // asked for again with what is heard next
  }
}

function renew() {
  const review = desk().dataset.review;
  if (document.hidden || !review) return;
  const url = form().dataset.act.replace("ACTION", "renew");
  tell(url).catch(() => {});
}
