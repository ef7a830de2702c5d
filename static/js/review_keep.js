// What somebody wrote stays in the browser until the platform has it: drafts while writing, and of reviews an outbox of what
// was sent and not yet answered. Survives a reload, a closed tab and a lost network. Knows no page.

const DRAFT = "claw-draft:";
const OUTBOX = "claw-outbox";
const KEEP_MS = 14 * 24 * 3600 * 1000;

const NOT_WRITTEN = ["csrfmiddlewaretoken", "seconds"]; // these are the page's own

// `name`: a review's id, or what else the form is known by.
export function saveDraft(name, form) {
  const entries = [...new FormData(form)].filter(([field]) => !NOT_WRITTEN.includes(field));
  write(DRAFT + name, { entries, at: Date.now() });
}

// Fills the form in; says whether there was a draft that says something.
export function restoreDraft(name, form) {
  const draft = read(DRAFT + name);
  if (!draft) return false;
  for (const field of form.querySelectorAll("[name]")) {
    if (NOT_WRITTEN.includes(field.name)) continue;
    const values = draft.entries.filter(([name]) => name === field.name).map(([, value]) => value);
    if (field.type === "radio" || field.type === "checkbox") field.checked = values.includes(field.value);
    else field.value = values[0] ?? "";
    if (field.value && field.matches("details textarea")) field.closest("details").open = true;
  }
  return draft.entries.some(([, value]) => value !== "");
}

export function dropDraft(name) {
  localStorage.removeItem(DRAFT + name);
}

export function readOutbox() {
  return read(OUTBOX) ?? {};
}

export function putIntoOutbox(review, sending) {
  write(OUTBOX, { ...readOutbox(), [review]: sending });
}

export function dropFromOutbox(review) {
  const outbox = readOutbox();
  delete outbox[review];
  write(OUTBOX, outbox);
}

export function sweepDrafts() {
  for (const key of Object.keys(localStorage)) {
    if (key.startsWith(DRAFT) && Date.now() - (read(key)?.at ?? 0) > KEEP_MS) localStorage.removeItem(key);
  }
}

function read(key) {
  try {
    return JSON.parse(localStorage.getItem(key));
  } catch {
    return null;
  }
}

function write(key, value) {
  try {
    localStorage.setItem(key, JSON.stringify(value));
  } catch {
    // Full, or forbidden: the form itself still has it.
  }
}
