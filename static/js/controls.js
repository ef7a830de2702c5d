// Small controls: copying, menus that close, tabs, filters that apply themselves, questions before what has no undo.

import { showToast } from "./toast.js";

export function startCopy() {
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-copy]");
    if (!button) return;
    try {
      await writeText(button.dataset.copy);
      mark(button);
    } catch {
      showToast({ text: "The browser did not allow copying. Select the text and copy it by hand.", kind: "error" });
    }
  });
}

async function writeText(text) {
  if (navigator.clipboard && window.isSecureContext) return navigator.clipboard.writeText(text);
  const area = document.createElement("textarea"); // plain http on another host has no clipboard API
  area.value = text;
  area.className = "visually-hidden";
  document.body.append(area);
  area.select();
  const copied = document.execCommand("copy");
  area.remove();
  if (!copied) throw new Error("copy refused");
}

function mark(button) {
  button.classList.add("is-done");
  const words = button.querySelector("span");
  const before = words?.textContent;
  if (words) words.textContent = "Copied";
  announce("Copied");
  setTimeout(() => {
    button.classList.remove("is-done");
    if (words) words.textContent = before;
  }, 1500);
}

function announce(text) {
  const place = document.getElementById("toasts");
  const note = document.createElement("span");
  note.className = "visually-hidden";
  note.textContent = text;
  place.append(note);
  setTimeout(() => note.remove(), 1500);
}

export function startMenus() {
  const close = (except) => {
    for (const menu of document.querySelectorAll("details.menu[open]")) if (menu !== except) menu.open = false;
  };
  document.addEventListener("click", (event) => close(event.target.closest("details.menu")));
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    const menu = event.target.closest?.("details.menu[open]");
    close(null);
    menu?.querySelector("summary").focus();
  });
}

export function startTabs(root) {
  for (const box of root.querySelectorAll("[data-tabs]")) {
    const tabs = [...box.querySelectorAll("[role=tab]")];
    const show = (chosen) => {
      for (const tab of tabs) {
        tab.setAttribute("aria-selected", String(tab === chosen));
        tab.tabIndex = tab === chosen ? 0 : -1;
        box.querySelector(`#${tab.getAttribute("aria-controls")}`).toggleAttribute("data-closed", tab !== chosen);
      }
    };
    for (const [place, tab] of tabs.entries()) {
      tab.addEventListener("click", () => show(tab));
      tab.addEventListener("keydown", (event) => {
        const way = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
        if (!way) return;
        const next = tabs[(place + way + tabs.length) % tabs.length];
        show(next);
        next.focus();
      });
    }
  }
}

// A table wider than its place can be scrolled by keyboard too.
export function startScrollers() {
  const mark = () => {
    for (const box of document.querySelectorAll(".table-wrap")) {
      if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
      else box.removeAttribute("tabindex");
    }
  };
  mark();
  window.addEventListener("resize", mark);
  document.addEventListener("live:refreshed", mark);
}

// On a telephone the list of pages is wider than the window: the one that is open comes into sight.
export function startPlaces() {
  const here = document.querySelector('.side-nav [aria-current="page"]');
  if (here) here.parentElement.scrollLeft = here.offsetLeft - (here.parentElement.clientWidth - here.offsetWidth) / 2;
}

export function startFilters() {
  for (const form of document.querySelectorAll("[data-submit-on-change]")) {
    form.addEventListener("change", () => {
      for (const field of form.elements) if (field.name && !field.value) field.disabled = true; // keep the address short
      form.submit();
    });
  }
}

// A button that the page may refuse stands as the page's latest word has it; the button itself is never replaced, since a
// press that began on the old one would be lost.
export function startRefusals() {
  for (const event of ["htmx:afterSettle", "live:refreshed"]) document.addEventListener(event, showRefusals);
}

function showRefusals() {
  for (const button of document.querySelectorAll("[data-unless]")) {
    button.disabled = Boolean(document.querySelector(button.dataset.unless));
    document.getElementById(button.getAttribute("aria-describedby")).hidden = !button.disabled;
  }
}

// What a form asks before it is sent. A form that is sent without an answer has the platform ask: it is told that nobody
// has asked yet, or the question, by a field that goes once a question is answered here.
export function startConfirm() {
  document.addEventListener("submit", (event) => {
    const form = event.target;
    const question = event.submitter?.dataset.confirm ?? form.querySelector("[name=question]")?.value;
    if (question && !window.confirm(question)) event.preventDefault();
    else if (question) form.addEventListener("formdata", ({ formData }) => ["question", "unasked"].forEach((name) => formData.delete(name)), { once: true });
  });
}
