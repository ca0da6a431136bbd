// The New Cluster form: what the server cannot know while one types. Works by attributes of the page, nothing to set up.
(function () {
  "use strict";
  document.addEventListener("DOMContentLoaded", () => {
    const form = document.getElementById("cluster-form");
    if (!form) return;
    // The first flavor for a role that has just got tasks: that of the role which every cluster has, as most people want.
    form.addEventListener("input", (event) => {
      const role = /^(\w+)_count$/.exec(event.target.name || "");
      const flavor = role && form.elements[role[1] + "_flavor"];
      if (flavor && !flavor.value && Number(event.target.value) > 0) flavor.value = form.querySelector("select[name$=_flavor]").value;
    });
    // INPUT and OUTPUT belong to the appcode, and where it runs decides which images can be used.
    form.elements.appcode.addEventListener("change", () => {
      const query = new URLSearchParams(["appcode", "image", "environment", "input", "output"].map((name) => [name, form.elements[name].value]));
      window.htmx.ajax("GET", "/clusters/datastores?" + query, { target: "#stores", swap: "innerHTML" });
    });
  });
  // What a web program needs stands open, and what a notebook may have is folded.
  document.addEventListener("change", (event) => {
    const fold = event.target.matches("#application-form [name=type]") && document.querySelector("#application-form details.fold");
    if (fold) fold.open = event.target.value !== "jupyter" || fold.open;
  });
  // The folded parts of the preview stay as they were when a new one arrives.
  let open = [];
  document.addEventListener("htmx:beforeSwap", (event) => {
    if (event.detail.target.id === "preview") open = [...event.detail.target.querySelectorAll("details[open]")].map((d) => d.id);
  });
  document.addEventListener("htmx:afterSwap", (event) => {
    if (event.detail.target.id === "preview") open.forEach((id) => { const d = document.getElementById(id); if (d) d.open = true; });
  });
})();
