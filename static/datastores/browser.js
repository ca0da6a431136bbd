// Uploads of the file browser: choose or drop, two files at a time, a bar for each, and the list renewed at the end.
(function () {
  "use strict";
  const form = document.getElementById("upload");
  if (!form) return;
  const list = form.querySelector(".uploads"), input = form.querySelector("input[type=file]");
  const token = form.querySelector("input[name=csrfmiddlewaretoken]").value;
  const waiting = [];
  let running = 0, stored = 0;

  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  function size(bytes) {
    const n = Math.min(units.length - 1, Math.floor(Math.log2(Math.max(bytes, 1)) / 10));
    return (n ? (bytes / 2 ** (10 * n)).toFixed(1) : bytes) + " " + units[n];
  }

  function line(name) {
    const item = document.createElement("li"), title = document.createElement("span"), bar = document.createElement("progress");
    const said = document.createElement("span"), stop = document.createElement("button");
    title.className = "truncate";
    title.textContent = title.title = name;
    bar.max = 1;
    bar.value = 0;
    bar.setAttribute("aria-label", name);
    said.className = "said";
    said.textContent = "waits";
    stop.type = "button";
    stop.className = "btn btn-quiet btn-small";
    stop.textContent = "Cancel";
    item.append(title, bar, said, stop);
    list.append(item);
    list.hidden = false;
    return { item, bar, said, stop };
  }

  function wrong(shown, sentence) {
    shown.item.classList.add("is-wrong");
    shown.bar.remove();
    shown.stop.remove();
    shown.said.textContent = sentence;
  }

  function add(file) {
    const folder = form.elements.folder.value.replace(/^\/+|\/+$/g, "");
    const path = (folder ? folder + "/" : "") + (file.webkitRelativePath || file.name);
    const shown = line(path);
    if (file.size > Number(form.dataset.largest)) return wrong(shown, "Too large: " + size(file.size) + ".");
    waiting.push({ file, path, shown });
    shown.stop.addEventListener("click", () => {
      const at = waiting.findIndex((each) => each.shown === shown);
      if (at < 0) return;
      waiting.splice(at, 1);
      wrong(shown, "Cancelled.");
    }, { once: true });
    next();
  }

  function next() {
    while (running < 2 && waiting.length) send(waiting.shift());
    if (running || waiting.length || !stored) return;
    stored = 0;
    window.htmx.ajax("GET", location.href, { target: "#files", select: "#files", swap: "outerHTML" });
  }

  function send({ file, path, shown }) {
    const request = new XMLHttpRequest();
    running += 1;
    request.open("PUT", form.action + "?path=" + encodeURIComponent(path));
    request.setRequestHeader("X-CSRFToken", token);
    request.setRequestHeader("Content-Type", "application/octet-stream");
    request.upload.addEventListener("progress", (event) => {
      shown.bar.value = event.total ? event.loaded / event.total : 1;
      shown.said.textContent = event.loaded < event.total ? size(event.loaded) + " of " + size(event.total) : "being stored";
    });
    request.addEventListener("load", () => {
      if (request.status === 204) {
        stored += 1;
        shown.bar.value = 1;
        shown.said.textContent = size(file.size) + " stored";
        shown.stop.remove();
        return;
      }
      let sentence = "It was not stored (" + request.status + ").";
      if (request.status === 401) sentence = "You have been signed out; sign in again in another tab.";
      try { sentence = JSON.parse(request.responseText).detail || sentence; } catch (error) { /* no JSON: the sentence above */ }
      wrong(shown, sentence);
    });
    request.addEventListener("error", () => wrong(shown, "The connection broke; nothing was stored."));
    request.addEventListener("abort", () => wrong(shown, "Cancelled; nothing was stored."));
    request.addEventListener("loadend", () => { running -= 1; next(); });
    shown.stop.addEventListener("click", () => request.abort(), { once: true });
    request.send(file);
  }

  input.addEventListener("change", () => { [...input.files].forEach(add); input.value = ""; });
  form.addEventListener("submit", (event) => event.preventDefault());
  const over = (event) => [...event.dataTransfer.types].includes("Files");
  ["dragenter", "dragover"].forEach((kind) => document.addEventListener(kind, (event) => {
    if (!over(event)) return;
    event.preventDefault();
    form.classList.add("is-over");
  }));
  document.addEventListener("dragleave", (event) => { if (!event.relatedTarget) form.classList.remove("is-over"); });
  document.addEventListener("drop", (event) => {
    if (!over(event)) return;
    event.preventDefault();
    form.classList.remove("is-over");
    // A dropped folder has no bytes of its own.
    [...event.dataTransfer.items].forEach((item) => {
      const entry = item.webkitGetAsEntry ? item.webkitGetAsEntry() : null;
      if (entry && entry.isDirectory) return wrong(line(entry.name), "A folder; choose the files in it.");
      const file = item.getAsFile();
      if (file) add(file);
    });
  });
  window.addEventListener("beforeunload", (event) => { if (running) event.preventDefault(); });
})();
