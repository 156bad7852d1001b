// A log grows by the parts that the server sends; the page keeps its last 200,000 characters and follows its end.
(function () {
  "use strict";
  var MOST = 200000;
  window.dash_clientside = window.dash_clientside || {};
  window.dash_clientside.jobs = {
    address: function (state) {
      return window.fusionAddress({ state: state });
    },
    log: function (part, shown) {
      if (!part || !part.text) {
        return window.dash_clientside.no_update;
      }
      window.setTimeout(function () {
        document.querySelectorAll("pre.log").forEach(function (log) {
          log.scrollTop = log.scrollHeight;
        });
      }, 0);
      return ((shown || "") + part.text).slice(-MOST);
    },
  };
})();
