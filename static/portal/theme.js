// Runs before the first paint: "auto" follows the system, so that a dark screen never flashes white.
(function () {
  "use strict";
  var root = document.documentElement;
  var system = window.matchMedia("(prefers-color-scheme: dark)");
  window.portalTheme = function (choice) {
    root.dataset.theme = choice;
    root.dataset.scheme = choice === "auto" ? (system.matches ? "dark" : "light") : choice;
  };
  system.addEventListener("change", function () { window.portalTheme(root.dataset.theme); });
  window.portalTheme(root.dataset.theme);
  root.classList.add("js");
})();
