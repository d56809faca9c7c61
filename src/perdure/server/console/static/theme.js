// Before the first paint: light or dark as the person chose, else as their system says.
(() => {
  let chosen = null;
  try { chosen = localStorage.getItem("perdure-theme"); } catch { /* storage may be off: the system decides */ }
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
