// Gives the REST API's page the console's colours before it is drawn: those of the cookie, else the system's.

const system = window.matchMedia("(prefers-color-scheme: dark)");

function showTheme() {
  const chosen = document.cookie.match(/(?:^|; )theme=(light|dark)(?:;|$)/)?.[1];
  document.documentElement.classList.toggle("dark-mode", chosen ? chosen === "dark" : system.matches);
}

showTheme();
system.addEventListener("change", showTheme);
