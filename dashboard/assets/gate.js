// Another model, run or baseline is another address: the page is asked for again, as by a link.
(function () {
  "use strict";
  window.dash_clientside = window.dash_clientside || {};
  window.dash_clientside.gate = {
    choose: function (model, run, baseline) {
      var url = new URL(window.location.href);
      var before = url.href;
      var changed = (url.searchParams.get("model") || "") !== (model || "");
      var id = function (label) {
        return changed || !label ? "" : label.slice(label.lastIndexOf(" ") + 1);
      };
      [["model", model], ["run", id(run)], ["baseline", id(baseline)]].forEach(function (pair) {
        if (pair[1]) {
          url.searchParams.set(pair[0], pair[1]);
        } else {
          url.searchParams.delete(pair[0]);
        }
      });
      if (url.href !== before) {
        window.history.pushState({}, "", url);
        window.dispatchEvent(new CustomEvent("_dashprivate_pushstate"));
      }
      return window.dash_clientside.no_update;
    },
  };
})();
