/* A JupyterLab extension in one file, without a build: says in the notebook what the portal has announced, with a button that keeps it.
   The gateway answers at /.portal/ of this origin; where it does not, nothing is shown. */
(window._JUPYTERLAB = window._JUPYTERLAB || {})["portal-notice"] = {
  init: async () => {},
  get: async () => () => ({
    __esModule: true,
    default: {
      id: "portal-notice:plugin",
      autoStart: true,
      activate: (app) => {
        let told = "", shown = null;
        const say = async (message, type, actions) => {
          if (shown) await app.commands.execute("apputils:dismiss-notification", { id: shown });
          const autoClose = type === "success" ? 5000 : false;
          shown = message && await app.commands.execute("apputils:notify", { message, type, options: { autoClose, actions } });
        };
        const look = async () => {
          if (document.hidden) return;
          const answer = await fetch("/.portal/idle").catch(() => null);
          if (!answer || !answer.ok) return;
          const { announced, sentence, mayKeep } = await answer.json();
          if (announced === told) return;
          told = announced;
          await say(sentence, "warning", mayKeep ? [{ label: "Keep", commandId: "portal:keep" }] : []);
        };
        app.commands.addCommand("portal:keep", {
          label: "Keep this application",
          execute: async () => {
            const answer = await fetch("/.portal/keep", { method: "POST" }).catch(() => null);
            await say(answer ? (await answer.json()).sentence : "The portal does not answer; try again.", answer && answer.ok ? "success" : "error", []);
            told = "";
          },
        });
        document.addEventListener("visibilitychange", look);
        setInterval(look, 30000);
        look();
      },
    },
  }),
};
