// The keyboard: rows, rewards, places. Never while someone types.

import { chooseHere } from "./pool.js";

let waitsForPlace = false;

export function startKeys() {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target)) return;
    if (document.querySelector("dialog[open]")) return;
    const handled = waitsForPlace ? go(event.key) : press(event.key);
    waitsForPlace = event.key === "g" && !waitsForPlace;
    if (handled) event.preventDefault();
  });
  for (const button of document.querySelectorAll("[data-keys-sheet]")) button.addEventListener("click", openSheet);
}

function isTyping(target) {
  return target.closest?.("input:not([type=checkbox], [type=radio]), textarea, select, [contenteditable]") !== null;
}

function press(key) {
  switch (key) {
    case "j": return move(1);
    case "k": return move(-1);
    case "f": return focus("#filters select");
    case "x": return chooseHere(false);
    case "X": return chooseHere(true);
    case "/": return focus("#f-q");
    case "z": return click("[data-undo]");
    case "?": return openSheet();
    case "+": case "-": case "0": return click(`#judge [data-key="${key}"]`);
    default: return false;
  }
}

function go(key) {
  const link = document.querySelector(`[data-go="${CSS.escape(key)}"]`);
  link?.click();
  return Boolean(link);
}

function click(selector) {
  const button = document.querySelector(selector);
  if (!button || button.disabled) return false;
  button.click();
  return true;
}

function focus(selector) {
  const field = document.querySelector(selector);
  field?.focus();
  return Boolean(field);
}

function openSheet() {
  const sheet = document.getElementById("keys-sheet");
  sheet?.showModal();
  return Boolean(sheet);
}

function move(way) {
  const stops = [...document.querySelectorAll("[data-rows] .row-link, [data-rows] > .turn")];
  if (!stops.length) return false;
  const here = stops.findIndex((stop) => stop.contains(document.activeElement));
  const next = stops[Math.min(Math.max(here + way, 0), stops.length - 1)];
  if (next.matches(".turn")) next.tabIndex = -1;
  next.focus();
  next.scrollIntoView({ block: "nearest" });
  return true;
}
