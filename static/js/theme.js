// Changes the colours at once and keeps the choice in the cookie that the server reads.

const YEAR_S = 365 * 86400;

export function startThemes() {
  for (const form of document.querySelectorAll(".themes")) {
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      choose(form, event.submitter.value);
    });
  }
}

function choose(form, theme) {
  document.documentElement.dataset.theme = theme;
  document.cookie = `theme=${theme}; path=/; samesite=lax; max-age=${theme === "system" ? 0 : YEAR_S}`;
  for (const button of form.querySelectorAll("button")) {
    button.setAttribute("aria-pressed", String(button.value === theme));
  }
  document.dispatchEvent(new CustomEvent("theme:changed"));
}
