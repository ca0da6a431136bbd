// The New Cluster form: what must react while the user types. Driven by attributes of the page; needs no set-up.
(function () {
  "use strict";
  // The form of a sweep shows its used parameter rows, and one more on request.
  document.addEventListener("DOMContentLoaded", () => {
    const add = document.querySelector("[data-add-parameter]");
    if (!add) return;
    const spare = () => [...document.querySelectorAll(".parameter[data-spare]")];
    spare().forEach((row) => { row.hidden = true; });
    const part = (row, name) => row.querySelector("[name$='-" + name + "']");
    function another() {
      let row = spare().find((each) => each.hidden);
      if (!row) {
        const rows = document.querySelectorAll(".parameter"), last = rows[rows.length - 1];
        if (rows.length >= 50) return null;
        row = last.cloneNode(true);
        row.classList.remove("field-wrong");
        row.querySelectorAll(".errorlist").forEach((each) => each.remove());
        row.querySelectorAll("[name]").forEach((each) => {
          each.name = each.name.replace(/-\d+-/, "-" + rows.length + "-");
          each.removeAttribute("aria-invalid");
          if (each.type === "checkbox") each.checked = false; else if (each.tagName === "INPUT") each.value = "";
        });
        last.after(row);
      }
      row.hidden = false;
      row.removeAttribute("data-spare");
      return row;
    }
    add.addEventListener("click", () => { const row = another(); if (row) part(row, "name").focus(); });
    // A parameter of the cluster fills a row, with a range around its value, and takes the place of that value in the command.
    const form = add.form, shown = () => [...document.querySelectorAll(".parameter:not([hidden])")];
    const chips = [...document.querySelectorAll("[data-parameter]")];
    const press = () => chips.forEach((chip) => {
      const name = JSON.parse(chip.dataset.parameter).name;
      chip.setAttribute("aria-pressed", shown().some((row) => part(row, "name").value.trim() === name));
    });
    chips.forEach((chip) => chip.addEventListener("click", () => {
      const said = JSON.parse(chip.dataset.parameter);
      let row = shown().find((each) => part(each, "name").value.trim() === said.name);
      if (!row) {
        row = shown().find((each) => !["name", "low", "high", "values"].some((name) => part(each, name).value.trim())) || another();
        if (!row) return;
        Object.entries(said).forEach(([name, value]) => { const to = part(row, name); if (to.type === "checkbox") to.checked = true; else to.value = value; });
        if (chip.dataset.find) form.elements.command.value = form.elements.command.value.replace(chip.dataset.find, () => chip.dataset.put);
        form.dispatchEvent(new Event("change", { bubbles: true }));
      }
      part(row, said.type === "choice" ? "values" : "low").focus();
      press();
    }));
    form.addEventListener("input", press);
    press();
    // A metric that the cluster has recorded says whether less of it is better.
    form.elements.metric.addEventListener("input", (event) => {
      const known = [...document.querySelectorAll("#metrics option")].find((each) => each.value === event.target.value);
      if (known) form.elements.direction.value = known.dataset.direction;
    });
  });
  document.addEventListener("DOMContentLoaded", () => {
    const form = document.getElementById("cluster-form");
    if (!form) return;
    // Default flavor for a role that just got tasks: that of the role which every cluster has, the usual choice.
    form.addEventListener("input", (event) => {
      const role = /^(\w+)_count$/.exec(event.target.name || "");
      const flavor = role && form.elements[role[1] + "_flavor"];
      if (flavor && !flavor.value && Number(event.target.value) > 0) flavor.value = form.querySelector("select[name$=_flavor]").value;
    });
    form.querySelectorAll("textarea[data-files]").forEach(files);
    // Choosing a flavor for a role without tasks sets its count to 1; choosing none sets it to 0.
    form.addEventListener("change", (event) => {
      const role = /^(\w+)_flavor$/.exec(event.target.name || "");
      const count = role && form.elements[role[1] + "_count"];
      if (count && event.target.value && !Number(count.value)) count.value = 1;
      else if (count && !event.target.value) count.value = 0;
      const one = role && event.target.closest(".role").querySelector("[data-one]");
      if (one) one.textContent = event.target.value ? 1 : 0;
    });
    // An image that is known to lack the chosen framework selects its own.
    form.addEventListener("change", (event) => {
      if (event.target.name !== "image") return;
      const has = JSON.parse(event.target.dataset.frameworks)[event.target.value] || [];
      if (has.length && !has.includes(form.elements.framework.value)) form.elements.framework.value = has[0];
    });
    // A button of an offer changes what it would change, and the preview says what becomes of it.
    document.addEventListener("click", (event) => {
      const offer = event.target.closest("[data-fields]");
      if (!offer) return;
      const changed = Object.entries(JSON.parse(offer.dataset.fields)).filter(([name]) => form.elements[name]);
      changed.forEach(([name, value]) => { form.elements[name].value = value; });
      changed.forEach(([name]) => form.elements[name].dispatchEvent(new Event("change", { bubbles: true })));
      changed.forEach(([name]) => { const fold = form.elements[name].closest("details"); if (fold) fold.open = true; });
    });
    // What the summary says is of what was typed: it waits, without a verdict, until it is judged again, and says so when it cannot be.
    const summary = document.getElementById("summary"), stale = document.getElementById("stale");
    ["input", "change"].forEach((kind) => form.addEventListener(kind, () => summary.classList.add("is-waiting")));
    document.addEventListener("htmx:afterSwap", (event) => {
      if (event.detail.target.id !== "preview") return;
      summary.classList.remove("is-waiting", "is-stale");
      stale.hidden = true;
    });
    ["htmx:responseError", "htmx:sendError"].forEach((kind) => document.addEventListener(kind, (event) => {
      if (event.detail.elt.id !== "preview") return;
      summary.classList.add("is-stale");
      stale.textContent = event.detail.xhr && [401, 403].includes(event.detail.xhr.status) ? "You have been signed out: what you typed since is not judged."
        : "The portal does not answer: what you typed since is not judged.";
      stale.hidden = false;
    }));
    window.addEventListener("focus", () => { if (!stale.hidden) window.htmx.trigger("#preview", "renew"); });
    // Each framework has its own roles and completion rules. Values that it does not support stay visible.
    function fit() {
      const framework = form.elements.framework.value, ends = JSON.parse(form.elements.framework.dataset.completions)[framework] || [];
      form.querySelectorAll("[data-of]").forEach((part) => {
        const asked = [...part.querySelectorAll("[name$=_count]")].some((count) => Number(count.value) > 0);
        part.hidden = !asked && !part.querySelector(".field-wrong") && !part.dataset.of.split(" ").includes(framework);
      });
      const several = document.getElementById("several");
      if (several.dataset.needed.split(" ").includes(framework)) several.open = true;
      const completion = form.elements.completion;
      [...completion.options].forEach((each) => { each.disabled = !ends.includes(each.value); });
      if (completion.selectedOptions[0] && completion.selectedOptions[0].disabled && ends.length) completion.value = ends[0];
    }
    form.addEventListener("change", (event) => { if (["framework", "image"].includes(event.target.name)) fit(); });
    fit();
    // INPUT and OUTPUT depend on the appcode, and the cloud where it runs decides which images are usable.
    form.elements.appcode.addEventListener("change", () => {
      const query = new URLSearchParams(["appcode", "image", "environment", "input", "output", "hook_address"].map((name) => [name, form.elements[name].value]));
      query.set("hook_starters", [...form.querySelectorAll("[name=hook_starters]:checked")].map((each) => each.value).join(" "));
      // The cards run in the chosen appcode, as the form does.
      document.querySelectorAll(".starters [data-appcode]").forEach((words) => { words.textContent = form.elements.appcode.value; });
      document.querySelectorAll(".starters [name=appcode]").forEach((input) => { input.value = form.elements.appcode.value; });
      document.querySelectorAll(".starters a").forEach((link) => { const to = new URL(link.href); to.searchParams.set("appcode", form.elements.appcode.value); link.href = to; });
      window.htmx.ajax("GET", "/clusters/datastores?" + query, { target: "#stores", swap: "innerHTML" });
    });
  });

  // --- Code files: dropped, chosen or typed. The text area holds them as JSON by name; without this script, users edit the JSON.
  const LEFT_OUT = /(^|\/)(\.git|__pycache__|\.ipynb_checkpoints|\.DS_Store)(\/|$)/;
  function make(tag, attributes, ...inside) {
    const made = document.createElement(tag);
    Object.entries(attributes).forEach(([name, value]) => (name in made ? (made[name] = value) : made.setAttribute(name, value)));
    made.append(...inside);
    return made;
  }
  async function below(entry) {
    if (entry.isFile) return [[entry.fullPath.slice(1), await new Promise((done, failed) => entry.file(done, failed))]];
    const reader = entry.createReader(), found = [];
    // A reader returns at most a hundred entries per call.
    for (;;) {
      const some = await new Promise((done, failed) => reader.readEntries(done, failed));
      if (!some.length) return found;
      for (const each of some) if (!LEFT_OUT.test(each.fullPath)) found.push(...await below(each));
    }
  }
  // A text area for programs: Tab indents, Enter keeps the indent, lines have numbers. insertText leaves the browser's undo as it is.
  function editor(text, hint) {
    let leaves = false;
    const numbers = make("pre", { ariaHidden: "true" });
    const insert = (words) => document.execCommand(words ? "insertText" : "delete", false, words);
    const count = () => { numbers.textContent = text.value.split("\n").map((_, n) => n + 1).join("\n"); numbers.scrollTop = text.scrollTop; };
    text.wrap = "off";
    text.setAttribute("aria-describedby", hint.id);
    text.addEventListener("scroll", () => { numbers.scrollTop = text.scrollTop; });
    text.addEventListener("input", count);
    text.addEventListener("keydown", (event) => {
      const left = leaves, { selectionStart: from, selectionEnd: to, value } = text, begin = value.lastIndexOf("\n", from - 1) + 1;
      leaves = event.key === "Escape" || (leaves && event.key === "Shift");
      if (event.ctrlKey || event.altKey || event.metaKey || event.isComposing) return;
      if (event.key === "Enter") {
        const line = value.slice(begin, from);
        event.preventDefault();
        insert("\n" + line.match(/^[ \t]*/)[0] + (/:\s*$/.test(line) ? "    " : ""));
        text.scrollLeft = 0;
      } else if (event.key === "Tab" && !left) {
        event.preventDefault();
        if (!event.shiftKey && from === to) { insert(" ".repeat(4 - (from - begin) % 4)); return; }
        const lines = value.slice(begin, to), moved = from === to ? "    " + lines : lines.replace(/^(?!$)/gm, "    "), back = lines.replace(/^( {1,4}|\t)/gm, "");
        const next = event.shiftKey ? back : moved;
        if (next === lines) return;
        text.setSelectionRange(begin, to);
        insert(next);
        if (from === to) text.setSelectionRange(Math.max(begin, from + next.length - lines.length), Math.max(begin, from + next.length - lines.length));
        else text.setSelectionRange(begin, begin + next.length);
      }
    });
    count();
    return make("div", { className: "editor" }, numbers, text);
  }
  function files(area) {
    const most = Number(area.dataset.files) * 1024, list = make("div", {}), said = make("p", { className: "hint", role: "status" });
    const keys = make("p", { className: "hint", id: area.id + "-keys" }, "Tab indents. To leave a file by the keyboard, press Escape, then Tab.");
    const choose = make("input", { type: "file", multiple: true, hidden: true, ariaLabel: "Files of the code" });
    const folder = make("input", { type: "file", hidden: true, webkitdirectory: true, ariaLabel: "Folder of the code" });
    const button = (text, press) => make("button", { type: "button", className: "btn btn-small", onclick: press }, text);
    const box = make("div", { className: "drop-files" }, list,
      make("div", { className: "drop-bar" }, button("Choose files…", () => choose.click()), button("Choose a folder…", () => folder.click()),
        button("Write a file", () => { held[unused("train.py")] = ""; show(); list.lastChild.open = true; list.lastChild.querySelector("input").select(); }),
        make("span", { className: "muted small" }, "or drop them here")), keys, said, choose, folder);
    let held = {};
    try { held = JSON.parse(area.value || "{}"); } catch { return; }
    if (typeof held !== "object" || Array.isArray(held)) return;
    area.hidden = true;
    area.after(box);
    const unused = (name) => { let free = name; for (let n = 2; free in held; n++) free = name.replace(/(\.\w+)?$/, "-" + n + "$1"); return free; };
    // A command that nobody has typed is that of the only program.
    const command = area.form.elements.command;
    let proposed = "";
    function propose() {
      const programs = Object.keys(held).filter((name) => /^[\w./-]+\.py$/.test(name)), wanted = programs.length === 1 ? "python " + programs[0] : "";
      if (!command || command.value !== proposed || wanted === proposed) return;
      command.value = proposed = wanted;
      command.dispatchEvent(new Event("input", { bubbles: true }));
    }
    function store(words) {
      propose();
      keys.hidden = !list.children.length;
      const size = Object.values(held).reduce((sum, text) => sum + new Blob([text]).size, 0), count = Object.keys(held).length;
      area.value = count ? JSON.stringify(held) : "";
      said.textContent = [count && Math.ceil(size / 1024) + " of " + most / 1024 + " KiB.", words].filter(Boolean).join(" ");
      said.classList.toggle("too-much", size > most);
      area.dispatchEvent(new Event("input", { bubbles: true }));
    }
    function row(name) {
      const text = make("textarea", { className: "code", rows: 12, value: held[name], spellcheck: false, ariaLabel: "Text of " + name, oninput: () => { held[name] = text.value; store(); } });
      const rename = make("input", { className: "code", value: name, spellcheck: false, ariaLabel: "Name of the file", onchange: () => {
        if (rename.value === name || rename.value in held || !rename.value) { rename.value = name; return; }
        held = Object.fromEntries(Object.entries(held).map(([key, value]) => [key === name ? rename.value : key, value]));
        show(rename.value);
      } });
      const gone = button("Remove", () => { delete held[name]; show(); });
      gone.setAttribute("aria-label", "Remove " + name);
      return make("details", { className: "file" }, make("summary", {}, make("code", {}, name)), make("div", { className: "drop-bar" }, rename, gone), editor(text, keys));
    }
    function show(open, words) {
      list.replaceChildren(...Object.keys(held).map(row));
      [...list.children].forEach((each) => { each.open = each.querySelector("input").value === open; });
      store(words);
    }
    async function take(pairs) {
      const wrong = [];
      // A single folder is the program itself, not a subfolder.
      const top = pairs.length && pairs[0][0].split("/")[0] + "/", alone = pairs.every(([name]) => name.startsWith(top));
      for (const [name, file] of pairs) {
        if (LEFT_OUT.test(name)) continue;
        try {
          if (file.size > most) throw new RangeError();
          held[alone ? name.slice(top.length) : name] = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(await file.arrayBuffer());
        } catch { wrong.push(name); }
      }
      show("", wrong.length ? "Left out, for they are too large or no text: " + wrong.slice(0, 5).join(", ") + (wrong.length > 5 ? " and " + (wrong.length - 5) + " more" : "") + "." : "");
    }
    const chosen = (event) => { take([...event.target.files].map((file) => [file.webkitRelativePath || file.name, file])); event.target.value = ""; };
    choose.addEventListener("change", chosen);
    folder.addEventListener("change", chosen);
    // Their own fields are not submitted; only the text area counts.
    [list, choose, folder].forEach((each) => ["input", "change"].forEach((name) => each.addEventListener(name, (event) => event.stopPropagation())));
    box.addEventListener("dragover", (event) => { event.preventDefault(); box.classList.add("over"); });
    box.addEventListener("dragleave", () => box.classList.remove("over"));
    box.addEventListener("drop", async (event) => {
      event.preventDefault();
      box.classList.remove("over");
      const entries = [...event.dataTransfer.items].map((item) => item.webkitGetAsEntry()).filter(Boolean);
      take((await Promise.all(entries.map(below))).flat());
    });
    list.replaceChildren(...Object.keys(held).map(row));
    if (Object.keys(held).length) store();
  }

  // Folded parts of the preview keep their state when a new preview arrives.
  let open = [];
  document.addEventListener("htmx:beforeSwap", (event) => {
    if (event.detail.target.id === "preview") open = [...event.detail.target.querySelectorAll("details[open]")].map((d) => d.id);
  });
  document.addEventListener("htmx:afterSwap", (event) => {
    if (event.detail.target.id !== "preview") return;
    open.forEach((id) => { const d = document.getElementById(id); if (d) d.open = true; });
    // What already stands beside a field is not said twice: the summary leads there.
    document.querySelectorAll("#preview .wrong a").forEach((link) => {
      const control = document.getElementById(link.hash.slice(1)), said = link.closest("li").querySelector("span");
      const beside = control && control.closest(".field") && control.closest(".field").querySelector(".errorlist");
      said.hidden = Boolean(beside) && said.textContent.includes(beside.textContent.trim());
    });
  });
})();
