// The Logs tab. Asks for what came after the positions it has, keeps the last lines in the page, searches in them.
// One idea: a log is a list of lines, each a <div>; a line that is still being written is replaced until it ends.
(function () {
  "use strict";
  const MAX_LINES = 20000, MAX_SHOWN = 8000, FAST = 1000, SLOW = 5000;
  // Colours and cursor movements of terminals say nothing here.
  const ESCAPES = /\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-_])/g;

  document.addEventListener("DOMContentLoaded", () => {
    document.querySelectorAll("[data-submits]").forEach((select) => select.addEventListener("change", () => {
      if (select.name === "task") { const attempt = select.form.elements.attempt; if (attempt) attempt.disabled = true; }
      select.form.submit();
    }));
    const log = document.getElementById("log");
    if (log) start(log);
  });

  function start(log) {
    const $ = (id) => document.getElementById(id);
    const tasks = log.dataset.tasks.split(" ").filter(Boolean), merged = tasks.length > 1;
    const positions = {}, open = {}, first = {}, attempts = {};
    tasks.forEach((task) => { positions[task] = log.dataset.attempt ? { attempt: Number(log.dataset.attempt), offset: 0 } : null; });
    const token = document.querySelector("#post input[name=csrfmiddlewaretoken]").value;
    const width = Math.max(...tasks.map((task) => task.length));
    let words = "", lines = 0, hits = 0, pause = FAST, timer = null, pausedAt = null, waits = "";

    // What a terminal would show of a line: what follows the last carriage return, without escapes.
    function visible(text) {
      text = text.replace(ESCAPES, "").replace(/[\b]+/g, "");
      const parts = text.replace(/\r+$/, "").split("\r");
      return parts[parts.length - 1];
    }
    function fill(div, task, raw) {
      const text = visible(raw), cut = text.length > MAX_SHOWN;
      const shown = cut ? text.slice(0, MAX_SHOWN) : text;
      const parts = [];
      if (merged) { const name = document.createElement("b"); name.textContent = task.padEnd(width) + "  "; parts.push(name); }
      const at = words ? text.toLowerCase().indexOf(words) : -1;
      if (at >= 0 && at < MAX_SHOWN) {
        const mark = document.createElement("mark");
        mark.textContent = shown.slice(at, at + words.length);
        parts.push(shown.slice(0, at), mark, shown.slice(at + words.length));
      } else parts.push(shown || " ");
      if (cut) { const more = document.createElement("i"); more.textContent = " … " + (text.length - MAX_SHOWN).toLocaleString("en") + " more characters; download the log to see them"; parts.push(more); }
      div.replaceChildren(...parts);
      const hit = at >= 0;
      if (hit !== div.classList.contains("hit")) { hits += hit ? 1 : -1; div.classList.toggle("hit", hit); }
      div.raw = raw;
      div.task = task;
    }
    function drop(div) { if (div.classList.contains("hit")) hits -= 1; div.remove(); lines -= 1; }
    function line(task, raw, into) { const div = document.createElement("div"); fill(div, task, raw); into.append(div); lines += 1; return div; }
    function note(task, text, into) { const div = line(task, text, into); div.classList.add("note"); }

    function add(piece) {
      const into = document.createDocumentFragment(), known = positions[piece.task];
      if (known && known.attempt !== piece.attempt) { delete open[piece.task]; note(piece.task, "— attempt " + (piece.attempt + 1) + " —", into); }
      if (!known) first[piece.task] = piece.start;
      positions[piece.task] = { attempt: piece.attempt, offset: piece.offset, cursor: piece.cursor };
      attempts[piece.task] = piece.attempt;
      const parts = piece.text.split("\n"), last = parts.pop();
      for (const part of parts) {
        if (open[piece.task]) { fill(open[piece.task], piece.task, open[piece.task].raw + part); delete open[piece.task]; }
        else line(piece.task, part, into);
      }
      if (last) {
        if (open[piece.task]) fill(open[piece.task], piece.task, open[piece.task].raw + last);
        else open[piece.task] = line(piece.task, last, into);
      }
      if (piece.note && piece.ended) { delete open[piece.task]; note(piece.task, "— " + piece.note + " —", into); }
      waits = piece.ended ? "" : piece.note;
      if (piece.ended) delete positions[piece.task];
      log.append(into);
      while (lines > MAX_LINES) drop(log.firstElementChild);
    }
    function state(text) { if ($("log-state").textContent !== text) $("log-state").textContent = text; }
    function say(error) {
      const left = Object.keys(positions).length;
      $("log-hits").textContent = words ? hits.toLocaleString("en") + (hits === 1 ? " line" : " lines") : "";
      if (error) state(error + " Trying again…");
      else if (waits) state(waits);
      else if (left) state(lines ? lines.toLocaleString("en") + " lines, more to come." : "Nothing has been written yet.");
      else state(lines ? lines.toLocaleString("en") + " lines. The end." : "Nothing was written.");
      $("log-earlier").hidden = merged || !(first[tasks[0]] > 0);
    }
    async function ask(body) {
      const response = await fetch(log.dataset.url, { method: "POST", headers: { "Content-Type": "application/json", "X-CSRFToken": token }, body: JSON.stringify(body) });
      if (!response.ok) throw new Error(response.status === 401 || response.redirected ? "You have been signed out." : "The portal answered " + response.status + ".");
      return response.json();
    }
    async function poll() {
      timer = null;
      if (document.hidden) { timer = setTimeout(poll, SLOW); return; }
      let news = 0, error = "";
      try {
        const answer = await ask(positions);
        error = answer.error;
        const stays = log.scrollTop;
        answer.pieces.forEach((piece) => { news += piece.text.length; add(piece); });
        if ($("log-follow").checked) log.scrollTop = log.scrollHeight; else if (news) log.scrollTop = stays;
      } catch (trouble) { error = trouble.message || "The portal does not answer."; }
      say(error);
      pause = news ? FAST : Math.min(SLOW, pause * 1.5);
      if (Object.keys(positions).length) timer = setTimeout(poll, news > 100000 ? 50 : pause);
    }

    $("log-wrap").addEventListener("change", (event) => log.classList.toggle("is-wrapped", event.target.checked));
    $("log-only").addEventListener("change", (event) => log.classList.toggle("only-hits", event.target.checked));
    $("log-follow").addEventListener("change", (event) => { if (event.target.checked) log.scrollTop = log.scrollHeight; });
    // Scrolling up stops following; scrolling to the end takes it up again.
    log.addEventListener("scroll", () => { $("log-follow").checked = log.scrollTop + log.clientHeight >= log.scrollHeight - 24; });
    $("log-search").addEventListener("input", (event) => {
      clearTimeout(pausedAt);
      pausedAt = setTimeout(() => {
        words = event.target.value.toLowerCase();
        [...log.children].forEach((div) => { if (!div.classList.contains("note")) fill(div, div.task, div.raw); });
        const hit = log.querySelector(".hit");
        if (hit && words) { $("log-follow").checked = false; hit.scrollIntoView({ block: "center" }); }
        say("");
      }, 150);
    });
    $("log-search").addEventListener("keydown", (event) => {
      if (event.key !== "Enter") return;
      event.preventDefault();
      const all = [...log.querySelectorAll(".hit")], now = all.findIndex((div) => div.classList.contains("at"));
      if (!all.length) return;
      const next = all[(now + (event.shiftKey ? -1 : 1) + all.length) % all.length];
      if (now >= 0) all[now].classList.remove("at");
      next.classList.add("at");
      next.scrollIntoView({ block: "center" });
    });
    $("log-earlier").addEventListener("click", async () => {
      const task = tasks[0];
      try {
        const piece = (await ask({ [task]: { attempt: attempts[task], before: first[task] } })).pieces[0];
        if (!piece) return;
        const into = document.createDocumentFragment(), height = log.scrollHeight;
        piece.text.replace(/\n$/, "").split("\n").forEach((part) => line(task, part, into));
        log.prepend(into);
        log.scrollTop += log.scrollHeight - height;
        first[task] = piece.start;
        say("");
      } catch (trouble) { say(trouble.message); }
    });
    poll();
  }
})();
