// Choosing rows of a list: x, Shift+x, the box in the head, and the bar of what can be done with them. The form works
// without this; here the bar appears when something is chosen, and choices outlive the rows being drawn again.

let chosen = new Set();
let lastId = "";

export function startPool() {
  const bar = document.querySelector("[data-bulk]");
  const rows = document.getElementById("rows");
  if (!bar || !rows) return;
  let withRange = false; // a click knows of Shift, the change that follows it does not
  rows.addEventListener("click", (event) => (withRange = event.shiftKey));
  rows.addEventListener("change", (event) => {
    const { name, value, checked } = event.target;
    if (name === "id") choose(withRange ? rangeTo(value) : [value], checked);
    withRange = false;
  });
  document.getElementById("choose-all")?.addEventListener("change", (event) => {
    choose(boxes().map((box) => box.value), event.target.checked);
  });
  bar.querySelector("[data-bulk-clear]").addEventListener("click", clear);
  bar.querySelector("[name=action]").addEventListener("change", showFields);
  bar.addEventListener("submit", putQuestion);
  document.addEventListener("live:refreshed", draw);
  showFields();
  for (const box of boxes()) if (box.checked) chosen.add(box.value); // the browser's Back brings choices with it
  draw();
}

// The row that has the focus is chosen or let go; with Shift all rows from the last one to it are chosen.
export function chooseHere(withRange) {
  const row = document.activeElement?.closest("#rows tr");
  if (!row) return false;
  if (withRange) choose(rangeTo(row.id), true);
  else choose([row.id], !chosen.has(row.id));
  return true;
}

// All rows from the last one that was chosen or let go to this one.
function rangeTo(id) {
  const ids = boxes().map((box) => box.value);
  const [from, to] = [ids.indexOf(lastId), ids.indexOf(id)].sort((a, b) => a - b);
  return from < 0 ? [id] : [...ids.slice(from, to + 1).filter((other) => other !== id), id];
}

function boxes() {
  return [...document.querySelectorAll("#rows [name=id]")];
}

// All at once: drawing sets the boxes, of which one may be what was asked.
function choose(ids, isChosen) {
  for (const id of ids) {
    if (isChosen) chosen.add(id);
    else chosen.delete(id);
    lastId = id;
  }
  draw();
}

function clear() {
  chosen = new Set();
  draw();
}

function draw() {
  const all = boxes();
  const here = new Set(all.map((box) => box.value));
  chosen = new Set([...chosen].filter((id) => here.has(id)));
  for (const box of all) {
    box.checked = chosen.has(box.value);
    box.closest("tr").toggleAttribute("data-chosen", box.checked);
  }
  const bar = document.querySelector("[data-bulk]");
  bar.hidden = chosen.size === 0 && !bar.querySelector("[role=alert]");
  document.getElementById("bulk-count").textContent = `${chosen.size} chosen`;
  const head = document.getElementById("choose-all");
  if (!head) return;
  head.checked = chosen.size > 0 && chosen.size === all.length;
  head.indeterminate = chosen.size > 0 && !head.checked;
}

function showFields() {
  const action = document.querySelector("[data-bulk] [name=action]").value;
  for (const field of document.querySelectorAll("[data-bulk] [data-for]")) {
    field.hidden = !field.dataset.for.split(" ").includes(action);
    field.querySelector("input, select").disabled = field.hidden; // what is wrong with it is no reason to hold the form up
  }
}

// What is done to rows that are out of sight, and a deletion, is asked once more, in the words of what is about to happen.
function putQuestion({ submitter }) {
  const bar = document.querySelector("[data-bulk]");
  const option = bar.querySelector("[name=action]").selectedOptions[0];
  if (submitter?.name !== "scope") return;
  delete submitter.dataset.confirm;
  if (submitter.value === "all" || option.value === "delete") submitter.dataset.confirm = question(bar, option, submitter.value);
}

// Of what the form itself says nothing is read by `dataset`: a field of it has that name.
function question(bar, option, scope) {
  const { found, undoDays } = document.getElementById("bulk-count").dataset;
  const rows = scope === "all" ? nameFound(found) : nameChosen(chosen.size);
  const asked = option.dataset.does.replace(/{(\w+)}/g, (_, name) => (name === "rows" ? rows : wordsOf(bar.elements[name])));
  const reach = scope === "all" ? " It reaches every page of this search." : "";
  const undo = "hasUndo" in option.dataset ? ` It can be undone for ${undoDays} days.` : "";
  return `${asked}?${reach}${undo}`;
}

function nameFound(count) {
  return count === "1" ? "the 1 trajectory found" : `all ${count ? `${count} ` : ""}trajectories found`;
}

function nameChosen(count) {
  return count === 1 ? "the chosen trajectory" : `the ${count} chosen trajectories`;
}

function wordsOf(field) {
  return field.selectedOptions ? (field.selectedOptions[0]?.textContent ?? "") : field.value.trim();
}
