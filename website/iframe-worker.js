// Browsers start no workers for pages that they read from files. There, search runs in an iframe.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      this.inside = frame.contentWindow;
      this.loaded = new Promise((resolve) => frame.addEventListener("load", resolve));
      const page = frame.contentDocument;
      page.open();
      page.write(
        "<script>postMessage = (data) => parent.postMessage(data, '*');</script>" +
          `<script src="${url}"></script>`
      );
      page.close();
      addEventListener("message", ({ source, data }) => {
        if (source === this.inside) this.dispatchEvent(new MessageEvent("message", { data }));
      });
    }

    async postMessage(data) {
      await this.loaded;
      this.inside.dispatchEvent(new MessageEvent("message", { data }));
    }
  };
}
