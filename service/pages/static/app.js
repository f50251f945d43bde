// Conveniences on every page: theme, relative times, copy buttons, questions before what cannot be undone.

import { enhance, updateTimes } from "./enhance.js";

function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

function setUpTheme() {
  const button = document.getElementById("theme");
  const name = () => { button.textContent = isDark() ? "Light" : "Dark"; };
  button.hidden = false;
  name();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", name);
  button.addEventListener("click", () => {
    const theme = isDark() ? "light" : "dark";
    document.documentElement.dataset.theme = theme;
    document.cookie = `shardtune_theme=${theme}; path=/; max-age=31536000; samesite=lax`;
    name();
  });
}

document.addEventListener("submit", (event) => {
  const question = event.target.dataset.confirm;
  if (question && !confirm(question)) event.preventDefault();
});
setUpTheme();
enhance(document);
setInterval(updateTimes, 10000);
