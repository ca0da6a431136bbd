// Uploads of the file browser: files and folders, chosen or dropped. Two uploads at a time, a bar for each, a total, and a refresh of
// the list at the end. Small files are sent in batches. Failed uploads retry automatically; those that cannot be sent now wait for the
// user, and none is forgotten. Large files are sent in parts: the portal knows which have arrived, so the same file, chosen again on
// another day, resumes.
(function () {
  "use strict";
  const form = document.getElementById("upload");
  if (!form) return;
  const list = form.querySelector(".uploads"), sum = form.querySelector(".uploads-sum"), again = form.querySelector(".uploads-again");
  const token = form.querySelector("input[name=csrfmiddlewaretoken]").value;
  // Stored files still shown; tries per file; seconds before the next try, doubled each time.
  const SHOWN = 5, TRIES = 6, PAUSE = 1, PLACES = 16, LARGE = 16 * 2 ** 20;
  // Limits of a batch: size of a file, number of files, and total bytes with multipart overhead.
  const SMALL = 2 ** 18, MANY = 100, MANY_BYTES = 3 * 2 ** 20, AROUND = 1024;
  const waiting = [], failed = [], pausing = new Set(), shownDone = [], moving = new Set();
  let running = 0, files = 0, bytes = 0, stored = 0, storedBytes = 0, renewed = 0, soon = 0, halted = "";
  // Whether this page may send parts directly to the store; known after the first one succeeds or fails.
  let direct = "direct" in form.dataset;

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
    stop.type = "button";
    stop.className = "btn btn-quiet btn-small";
    stop.textContent = "Cancel";
    item.append(title, bar, said, stop);
    list.prepend(item);
    list.hidden = false;
    return { item, bar, said, stop };
  }

  function wrong(shown, sentence) {
    shown.item.classList.add("is-wrong");
    shown.bar.remove();
    shown.stop.remove();
    shown.said.textContent = sentence;
  }

  function tell() {
    sum.hidden = files < 2 && !halted && !failed.length;
    const amount = files.toLocaleString("en") + " files stored, " + size([...moving].reduce((sum, job) => sum + job.loaded, storedBytes)) + " of " + size(bytes);
    sum.textContent = stored.toLocaleString("en") + " of " + amount + (halted ? ". " + halted : "");
    again.hidden = !(halted || (failed.length && !running && !waiting.length && !pausing.size));
    again.textContent = halted ? "Continue" : "Try the failed ones again";
  }

  function add(file, below) {
    const folder = form.elements.folder.value.replace(/^\/+|\/+$/g, "");
    const path = (folder ? folder + "/" : "") + below;
    if (file.size > Number(form.dataset.largest)) return wrong(line(path), "Too large: " + size(file.size) + ".");
    files += 1;
    bytes += file.size;
    waiting.push({ files: [{ file, path }], size: file.size, title: path, tries: 0, shown: null });
    // Adding a folder adds many files in a row.
    if (!soon) soon = setTimeout(() => { soon = 0; next(); }, 0);
  }

  const is_small = (job) => job.files.length === 1 && !job.alone && job.size <= SMALL;

  // Returns the next file, with small ones that wait behind it.
  function take() {
    const first = waiting.shift(), jobs = [first];
    let room = MANY_BYTES - first.size - AROUND;
    if (!is_small(first)) return first;
    while (waiting.length && jobs.length < MANY && is_small(waiting[0]) && room >= waiting[0].size + AROUND) {
      room -= waiting[0].size + AROUND;
      jobs.push(waiting.shift());
    }
    if (jobs.length === 1) return first;
    const title = jobs.length + " files: " + first.title + " …";
    return { files: jobs.map((job) => job.files[0]), size: jobs.reduce((sum, job) => sum + job.size, 0), title, tries: 0, shown: null };
  }

  function next() {
    while (!halted && running < 2 && waiting.length) send(take());
    tell();
    if (running || waiting.length || soon || pausing.size || stored === renewed) return;
    renewed = stored;
    window.htmx.ajax("GET", location.href, { target: "#files", select: "#files", swap: "outerHTML" });
  }

  function give_up(job, sentence) {
    wrong(job.shown, sentence);
    failed.push(job);
  }

  // Retries later; without a network as soon as it is back, however long that takes.
  function later(job, sentence) {
    if (!navigator.onLine) {
      halted = halted || "There is no network; it goes on by itself when there is one.";
      waiting.unshift(job);
    } else if ((job.tries += 1) < TRIES) {
      const timer = setTimeout(() => { pausing.delete(timer); waiting.unshift(job); next(); }, 1000 * PAUSE * 2 ** (job.tries - 1));
      pausing.add(timer);
    } else return give_up(job, sentence);
    job.shown.said.textContent = "is sent again";
  }

  function done(job) {
    stored += job.files.length;
    storedBytes += job.size;
    job.shown.bar.value = 1;
    job.shown.said.textContent = size(job.size) + " stored";
    job.shown.stop.remove();
    shownDone.push(job.shown);
    if (shownDone.length > SHOWN) shownDone.shift().item.remove();
  }

  // Sends one request of a file. Resolves to its answer, or null if empty. Rejects with the request on any other status.
  function ask(job, method, url, body, moved) {
    return new Promise((resolve, reject) => {
      const request = job.request = new XMLHttpRequest();
      request.open(method, url);
      request.setRequestHeader("X-CSRFToken", token);
      const is_form = body instanceof FormData, is_bytes = body instanceof Blob;
      if (!is_form) request.setRequestHeader("Content-Type", is_bytes ? "application/octet-stream" : "application/json");
      if (moved) request.upload.addEventListener("progress", (event) => moved(event.loaded));
      request.addEventListener("load", () => {
        if (request.status >= 300) return reject(request);
        resolve(request.responseText ? JSON.parse(request.responseText) : null);
      });
      ["error", "abort"].forEach((kind) => request.addEventListener(kind, () => reject(request)));
      request.send(is_form || is_bytes ? body : JSON.stringify(body));
    });
  }

  // Sends a part to a presigned URL, without headers of our own.
  function put(job, url, part, moved) {
    return new Promise((resolve, reject) => {
      const request = job.request = new XMLHttpRequest();
      request.open("PUT", url);
      request.upload.addEventListener("progress", (event) => moved(event.loaded));
      request.addEventListener("load", () => request.status < 300 ? resolve() : reject(request));
      ["error", "abort"].forEach((kind) => request.addEventListener(kind, () => reject(request)));
      request.send(part);
    });
  }

  // Resolves to true if the store has taken the part. Otherwise it goes through the portal, and after the second failure all do.
  let untaken = 0;
  async function straight(job, upload, n, stored, part, moved) {
    if (!direct) return false;
    try {
      if (!job.urls.has(n)) {
        const next = [];
        for (let m = n; m <= upload.parts && next.length < PLACES; m += 1) if (!stored.has(m)) next.push(m);
        const made = await ask(job, "POST", job.upload + "/urls", { parts: next });
        job.urls = new Map(made.items.map((item) => [item.part, item.url]));
        made.stored.forEach((m) => stored.add(m));
        if (stored.has(n)) return true;
      }
      await put(job, job.urls.get(n), part, moved);
      untaken = 0;
      return true;
    } catch (request) {
      if (!(request instanceof XMLHttpRequest)) throw request;
      if (job.cancelled || request.status === 401) throw request;
      job.urls.clear();
      untaken += 1;
      direct = untaken < 2;
      return false;
    }
  }

  function show(job, loaded) {
    const total = job.size;
    job.loaded = loaded;
    tell();
    job.shown.bar.value = total ? loaded / total : 1;
    job.shown.said.textContent = loaded < total ? size(loaded) + " of " + size(total) : "being stored";
  }

  async function in_parts(job) {
    const { file, path } = job.files[0], api = form.dataset.api;
    const upload = await ask(job, "POST", api + "/uploads", { path, size: file.size, fingerprint: String(file.lastModified) });
    job.upload = api + "/uploads/" + upload.id;
    job.urls = new Map();
    const address = api + "/files/" + path.split("/").map(encodeURIComponent).join("/") + "?upload=" + upload.id + "&part=";
    const stored = new Set(upload.stored);
    let sent = [...stored].reduce((sum, n) => sum + Math.min(upload.partSize, file.size - (n - 1) * upload.partSize), 0);
    for (let n = 1; n <= upload.parts; n += 1) {
      if (stored.has(n)) continue;
      const part = file.slice((n - 1) * upload.partSize, n * upload.partSize), before = sent;
      const moved = (loaded) => show(job, before + loaded);
      if (!await straight(job, upload, n, stored, part, moved)) await ask(job, "PUT", address + n, part, moved);
      sent += part.size;
      job.tries = 0;
      show(job, sent);
    }
    await ask(job, "POST", job.upload + "/finish", {});
  }

  function together(job) {
    const body = new FormData();
    job.files.forEach(({ file, path }) => body.append(encodeURIComponent(path), file));
    return ask(job, "POST", form.dataset.api + "/files", body, (loaded) => show(job, Math.min(loaded, job.size)));
  }

  // An error about one of the files is shown at that file.
  function apart(job) {
    job.shown.item.remove();
    waiting.unshift(...job.files.map((each) => ({ files: [each], size: each.file.size, title: each.path, tries: 0, shown: null, alone: true })));
  }

  function refused(job, request) {
    if (!request.status) return later(job, "The connection broke; it was not stored.");
    let sentence = "It was not stored (" + request.status + ").";
    try {
      const answer = JSON.parse(request.responseText);
      sentence = (answer.errors || []).map((error) => error.message).join(" ") || answer.detail || sentence;
    } catch (error) { /* no JSON: the sentence above */ }
    if (request.status === 401) {
      halted = "You have been signed out: sign in again in another tab, then continue.";
      waiting.unshift(job);
      job.shown.said.textContent = "waits";
    } else if (request.status === 429 || request.status >= 500) later(job, sentence);
    // The portal dropped the upload meanwhile: start again.
    else if (request.status === 404 && job.upload) later(job, sentence);
    else if (job.files.length > 1) apart(job);
    else give_up(job, sentence);
  }

  async function send(job) {
    const shown = job.shown = job.shown || line(job.title), is_large = job.size > LARGE && job.files.length === 1;
    const cancel = () => { job.cancelled = true; job.request.abort(); };
    running += 1;
    job.loaded = 0;
    moving.add(job);
    shown.stop.addEventListener("click", cancel);
    shown.stop.hidden = false;
    try {
      if (is_large) await in_parts(job);
      else if (job.files.length > 1) await together(job);
      else await ask(job, "PUT", form.action + "?path=" + encodeURIComponent(job.title), job.files[0].file, (loaded) => show(job, loaded));
      moving.delete(job);
      done(job);
    } catch (request) {
      if (!(request instanceof XMLHttpRequest)) throw request;
      if (job.cancelled) {
        files -= job.files.length;
        bytes -= job.size;
        wrong(shown, "Cancelled; nothing was stored.");
        if (job.upload) ask(job, "DELETE", job.upload, {}).catch(() => { /* it is dropped after a day */ });
      } else refused(job, request);
    } finally {
      moving.delete(job);
      shown.stop.removeEventListener("click", cancel);
      shown.stop.hidden = true;
      running -= 1;
      next();
    }
  }

  again.addEventListener("click", () => {
    halted = "";
    failed.splice(0).forEach((job) => {
      job.shown.item.remove();
      waiting.push({ ...job, tries: 0, shown: null });
    });
    next();
  });
  window.addEventListener("online", () => { halted = ""; next(); });

  form.querySelectorAll("input[type=file]").forEach((input) => input.addEventListener("change", () => {
    [...input.files].forEach((file) => add(file, file.webkitRelativePath || file.name));
    input.value = "";
  }));
  form.addEventListener("submit", (event) => event.preventDefault());
  const over = (event) => [...event.dataTransfer.types].includes("Files");
  ["dragenter", "dragover"].forEach((kind) => document.addEventListener(kind, (event) => {
    if (!over(event)) return;
    event.preventDefault();
    form.classList.add("is-over");
  }));
  document.addEventListener("dragleave", (event) => { if (!event.relatedTarget) form.classList.remove("is-over"); });

  // A folder returns its entries in portions; an empty one is the end.
  function walk(entry) {
    const path = entry.fullPath.replace(/^\//, "");
    const unread = (error) => wrong(line(path), "It cannot be read: " + error.message);
    if (entry.isFile) return entry.file((file) => add(file, path), unread);
    const reader = entry.createReader();
    (function more() {
      reader.readEntries((found) => { found.forEach(walk); if (found.length) more(); }, unread);
    })();
  }
  document.addEventListener("drop", (event) => {
    if (!over(event)) return;
    event.preventDefault();
    form.classList.remove("is-over");
    [...event.dataTransfer.items].map((item) => item.webkitGetAsEntry()).filter(Boolean).forEach(walk);
  });
  window.addEventListener("beforeunload", (event) => { if (running || waiting.length || pausing.size) event.preventDefault(); });
})();
