// A terminal in a task: xterm.js on a WebSocket (docs/api.md). A lost connection ends its shell, so reconnecting starts a new shell, and
// the screen says so.
(function () {
  "use strict";
  const FIRST_WAIT = 1000, LONGEST_WAIT = 15000, PIECE = 1 << 16;
  const KEYS = { Escape: "\x1b", Tab: "\t", Interrupt: "\x03", End: "\x04", Up: "\x1b[A", Down: "\x1b[B" };
  // Resets what a program may have left behind: alternate screen, mouse reports, bracketed paste, colours.
  const PLAIN = "\x1b[?1047l\x1b[?1000;1002;1003;1006;2004l\x1b[!p\x1b[0m";
  const HIDE = "\x1b[?25l", SHOW = "\x1b[?25h";

  document.addEventListener("DOMContentLoaded", () => {
    const box = document.getElementById("terminal");
    if (box && window.Terminal) start(box);
  });

  // xterm.js writes rules into <style> elements, which the Content-Security-Policy forbids; style sheets made by scripts are allowed.
  function sheetForStyle() {
    const make = document.createElement.bind(document);
    document.createElement = (name, options) => {
      if (String(name).toLowerCase() !== "style") return make(name, options);
      const sheet = new CSSStyleSheet(), element = make("span");
      element.hidden = true;
      document.adoptedStyleSheets.push(sheet);
      Object.defineProperty(element, "textContent", { set(rules) { sheet.replaceSync(rules); } });
      return element;
    };
  }

  function start(box) {
    const $ = (id) => document.getElementById(id);
    const encoder = new TextEncoder();
    const url = new URL(box.dataset.url, location.href);
    const at = url.href;
    url.protocol = location.protocol === "https:" ? "wss:" : "ws:";
    let socket = null, wait = FIRST_WAIT, typed = false, told = "";

    const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
    const theme = () => ({
      background: colour("--sunken"), foreground: colour("--text"), cursor: colour("--accent-text"), cursorAccent: colour("--sunken"),
      selectionBackground: colour("--accent") + "66", selectionInactiveBackground: colour("--accent") + "33",
    });
    sheetForStyle();
    const terminal = new window.Terminal({
      fontFamily: colour("--mono"), fontSize: 13, lineHeight: 1.15, scrollback: 10000, cursorBlink: true, minimumContrastRatio: 4.5,
      macOptionIsMeta: true, theme: theme(), screenReaderMode: false,
    });
    const fit = new window.FitAddon.FitAddon();
    terminal.loadAddon(fit);
    terminal.open(box);
    terminal.textarea.setAttribute("aria-label", "Terminal");
    new ResizeObserver(() => fit.fit()).observe(box);
    new MutationObserver(() => { terminal.options.theme = theme(); }).observe(document.documentElement, { attributeFilter: ["data-scheme"] });

    const isOpen = () => socket !== null && socket.readyState === WebSocket.OPEN;
    function send(bytes) {
      if (!isOpen()) return;
      typed = true;
      for (let from = 0; from < bytes.length; from += PIECE) socket.send(bytes.subarray(from, from + PIECE));
    }
    function tellSize() { if (isOpen()) socket.send(JSON.stringify({ resize: { columns: terminal.cols, rows: terminal.rows } })); }
    terminal.onData((text) => send(encoder.encode(text)));
    terminal.onBinary((text) => send(Uint8Array.from(text, (character) => character.charCodeAt(0))));
    terminal.onResize(tellSize);
    terminal.attachCustomKeyEventHandler((event) => {
      if (!(event.ctrlKey && event.shiftKey && event.code === "KeyC")) return true;
      event.preventDefault();
      if (event.type === "keydown" && terminal.hasSelection() && navigator.clipboard) navigator.clipboard.writeText(terminal.getSelection());
      return false;
    });

    function state(name) { $("terminal-state").querySelectorAll("[data-when]").forEach((each) => { each.hidden = each.dataset.when !== name; }); }
    function line(words) { terminal.write("\r\n\x1b[1m— " + words + " —\x1b[0m\r\n"); }
    function over(words, failed) {
      socket = null;
      state(failed ? "failed" : "ended");
      terminal.write(PLAIN);
      line(words);
      terminal.write(HIDE);
      $("terminal-again").hidden = false;
      $("terminal-again").focus();
    }
    // A hidden tab opens no shells.
    function later() {
      const go = () => { if (document.hidden) document.addEventListener("visibilitychange", go, { once: true }); else connect(true); };
      setTimeout(go, wait);
      wait = Math.min(LONGEST_WAIT, wait * 2);
    }
    // Browsers hide why a WebSocket was refused, so request the same URL over plain HTTP.
    async function why() {
      try {
        const answer = await fetch(at, { headers: { Accept: "application/json" } });
        return { status: answer.status, words: (await answer.json()).detail };
      } catch (error) { return { status: 0, words: "The portal does not answer." }; }
    }

    function connect(again) {
      let wasOpen = false, last = false;
      $("terminal-again").hidden = true;
      state(again ? "lost" : "connecting");
      const mine = socket = new WebSocket(url);
      mine.binaryType = "arraybuffer";
      mine.onopen = () => {
        wasOpen = true;
        wait = FIRST_WAIT;
        told = "";
        if (again) { terminal.write(SHOW); line("This is a new shell"); }
        state("connected");
        tellSize();
        terminal.focus();
      };
      mine.onmessage = (event) => {
        if (typeof event.data !== "string") { terminal.write(new Uint8Array(event.data)); return; }
        const said = JSON.parse(event.data);
        last = true;
        if (said.exit) over("The shell ended with code " + said.exit.code, false);
        else over(said.error, true);
      };
      mine.onclose = async () => {
        if (last) return;
        if (wasOpen) {
          terminal.write(PLAIN);
          line("Connection lost at " + new Date().toLocaleTimeString() + ", and the shell with it");
        } else {
          const { status, words } = await why();
          if (status === 401) return over("You have been signed out", true);
          if (status === 403 || status === 404 || status === 409) return over(words, true);
          if ((status === 503 || status === 0) && words !== told) line(told = words);
        }
        state("lost");
        later();
      };
    }

    $("terminal-again").addEventListener("click", () => { wait = FIRST_WAIT; connect(true); });
    $("terminal-keys").addEventListener("click", async (event) => {
      const keys = event.target.closest("[data-keys]");
      if (!keys) return;
      if (keys.dataset.keys === "Paste") { if (navigator.clipboard) terminal.paste(await navigator.clipboard.readText()); }
      else send(encoder.encode(KEYS[keys.dataset.keys]));
      terminal.focus();
    });
    // Ctrl-W deletes a word in a shell but closes a tab in a browser.
    window.addEventListener("beforeunload", (event) => { if (isOpen() && typed) event.preventDefault(); });
    fit.fit();
    connect(false);
  }
})();
