// What is half written on the page of a trajectory (words of a step, a reason, a correction) stays in the browser until it
// is said, by the same means as a reviewer's drafts. The page works without it.

import { dropDraft, restoreDraft, saveDraft, sweepDrafts } from "./review_keep.js";
import { showToast } from "./toast.js";

const KEPT = "form:has(#say-words, #fine-text, #c-message)";
const SENT = "claw-sent-draft"; // a form that led to another page: which draft, and where that is when it was said
const known = new WeakSet();

export function startDrafts() {
  dropSaid();
  if (!document.querySelector(KEPT)) return;
  sweepDrafts();
  restoreAll();
  document.addEventListener("input", ({ target }) => {
    const form = target.closest(KEPT);
    if (form) saveDraft(nameOf(form), form);
  });
  document.addEventListener("htmx:beforeSwap", ({ detail }) => {
    const form = detail.requestConfig.elt;
    if (!detail.isError && form.matches(KEPT)) dropDraft(nameOf(form));
  });
  document.addEventListener("submit", ({ target }) => {
    if (target.matches(KEPT) && target.dataset.saidAt) noteSent(nameOf(target), target.dataset.saidAt);
  });
  document.addEventListener("click", ({ target }) => {
    const form = target.closest("a[data-give-up]")?.closest(KEPT);
    if (form) dropDraft(nameOf(form));
  });
  for (const name of ["htmx:afterSettle", "live:refreshed"]) document.addEventListener(name, restoreAll);
}

// Of one page, one form and one person: a browser may have several.
function nameOf(form) {
  const person = document.querySelector(".side-user [title]")?.title ?? "";
  return `${person} ${location.pathname} ${form.querySelector("textarea").id}`;
}

function restoreAll() {
  for (const form of document.querySelectorAll(KEPT)) {
    if (known.has(form)) continue;
    known.add(form);
    if (!restoreDraft(nameOf(form), form)) continue;
    const fold = form.closest("details");
    if (fold) fold.open = true;
    showToast({ text: "Draft restored: what you wrote here and have not said yet." });
  }
}

function noteSent(name, saidAt) {
  try {
    sessionStorage.setItem(SENT, JSON.stringify({ name, saidAt }));
  } catch {
    // Forbidden: the draft stands until somebody gives it up.
  }
}

// The page that a form leads to when what it says was taken. Any other (a refusal, the door) leaves the draft.
function dropSaid() {
  try {
    const { name, saidAt } = JSON.parse(sessionStorage.getItem(SENT)) ?? {};
    sessionStorage.removeItem(SENT);
    if (name && location.pathname === saidAt) dropDraft(name);
  } catch {
    // Forbidden, or not ours.
  }
}
