// The keys of a review: digits choose, + and - take what is worth most and least, arrows go between fields. Before the keys of other pages,
// and never while somebody writes, but for Ctrl+Enter and Escape.

export function startReviewKeys(actions) {
  document.addEventListener("keydown", (event) => {
    if (document.querySelector("dialog[open]")) return;
    const handled = pressAnywhere(event, actions) || (!isTyping(event.target) && !hasModifier(event) && press(event.key, actions));
    if (!handled) return;
    event.preventDefault();
    event.stopImmediatePropagation();
  }, { capture: true });
  document.addEventListener("focusin", (event) => {
    const box = event.target.closest?.("[data-box]");
    if (box) markBox(box);
  });
}

function hasModifier(event) {
  return event.ctrlKey || event.metaKey || event.altKey;
}

function isTyping(target) {
  return target.closest?.("input:not([type=checkbox], [type=radio]), textarea, select") != null;
}

function pressAnywhere(event, actions) {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
    actions.submit();
    return true;
  }
  if (event.key === "Escape" && isTyping(event.target)) {
    focusForm();
    return true;
  }
  return false;
}

let waitsForPlace = false; // after g the next key is a place, and the other file's

function press(key, actions) {
  if (waitsForPlace || key === "g") {
    waitsForPlace = key === "g" && !waitsForPlace;
    return false;
  }
  if (/^[1-9]$/.test(key)) return choose((options) => options.find((option) => option.dataset.key === key));
  switch (key) {
    case "+": case "=": return choose(findBest);
    case "-": case "_": return choose(findWorst);
    case "ArrowDown": return step(1);
    case "ArrowUp": return step(-1);
    case "c": return comment();
    case "s": return actions.skip();
    case "b": return actions.putBack();
    case "z": return actions.undo();
    case "h": return toggleGuideline();
    case "j": return scroll(1);
    case "k": return scroll(-1);
    default: return false;
  }
}

function boxes() {
  return [...document.querySelectorAll("#review-form [data-box]")];
}

function currentBox() {
  return document.querySelector("#review-form [data-box].is-current") ?? boxes()[0];
}

export function markBox(box) {
  for (const other of boxes()) other.classList.toggle("is-current", other === box);
  box?.classList.remove("is-missing");
}

export function isAnswered(box) {
  return Boolean(box.querySelector("input[type=radio]:checked")) || Boolean(box.querySelector("input[type=number]")?.value);
}

export function firstOpenBox() {
  return boxes().find((box) => box.dataset.required !== undefined && !isAnswered(box));
}

export function focusForm() {
  document.getElementById("review-form")?.focus({ preventScroll: true });
}

function choose(find) {
  const box = currentBox();
  const option = box && find([...box.querySelectorAll("input[type=radio]")]);
  if (!option) return false;
  option.checked = true;
  const typed = box.querySelector("input[type=number]");
  if (typed) typed.value = "";
  option.dispatchEvent(new Event("input", { bubbles: true }));
  markBox(boxAfter(box));
  focusForm();
  return true;
}

// Where an answer goes on to, whether or not the next field is answered already: the same keys say the same on an item
// that came back. After the last field: what was passed over, or it stays.
function boxAfter(box) {
  const all = boxes();
  const later = all.slice(all.indexOf(box) + 1);
  return later.find((other) => other.dataset.required !== undefined) ?? firstOpenBox() ?? box;
}

// Answers that count for nothing (a choice without a reward, a side of a pair) are neither best nor worst.
function listWorthy(options) {
  return options.filter((option) => option.dataset.worth !== undefined);
}

function findBest(options) {
  return listWorthy(options).reduce((best, option) => (!best || Number(option.dataset.worth) >= Number(best.dataset.worth) ? option : best), null);
}

function findWorst(options) {
  return listWorthy(options).reduce((worst, option) => (!worst || Number(option.dataset.worth) < Number(worst.dataset.worth) ? option : worst), null);
}

function step(way) {
  const all = boxes();
  const next = all[Math.min(Math.max(all.indexOf(currentBox()) + way, 0), all.length - 1)];
  if (!next) return false;
  focusForm();
  markBox(next);
  next.scrollIntoView({ block: "nearest" });
  return true;
}

function comment() {
  const words = document.querySelector("#review-form .box > textarea") ?? currentBox()?.querySelector("textarea");
  if (!words) return false;
  const fold = words.closest("details");
  if (fold) fold.open = true;
  words.focus();
  return true;
}

function toggleGuideline() {
  const drawer = document.querySelector(".guideline");
  drawer.open = !drawer.open;
  return true;
}

function scroll(way) {
  window.scrollBy({ top: way * window.innerHeight * 0.6, behavior: "smooth" });
  return true;
}
