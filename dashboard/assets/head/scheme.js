// Light or dark, before anything is drawn: the reader's choice, else what the system prefers.
(function () {
  "use strict";
  var KEY = "fusion-audit-scheme";
  function stored() {
    try {
      var chosen = window.localStorage.getItem(KEY);
      return chosen === "dark" || chosen === "light" ? chosen : null;
    } catch (refused) {
      return null;
    }
  }
  function preferred() {
    return window.matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  }
  var root = document.documentElement;
  var shown = stored() || preferred();
  root.setAttribute("data-scheme", shown);

  window.fusionScheme = {
    current: function () {
      return shown;
    },
    choose: function (scheme) {
      shown = scheme;
      root.setAttribute("data-scheme", scheme);
      try {
        window.localStorage.setItem(KEY, scheme);
      } catch (refused) {
        // Without storage the choice holds for this page.
      }
      return scheme;
    },
  };
})();

// Pages that are drawn at once: what draws is fetched while the page is still being put together.
(function () {
  "use strict";
  if (!/^\/run\/[^/]+(\/timeline)?\/?$/.test(window.location.pathname)) {
    return;
  }
  ["/_dash-component-suites/plotly/package_data/plotly.min.js", "/_dash-component-suites/dash/dcc/async-graph.js"].forEach(
    function (address) {
      var link = document.createElement("link");
      link.rel = "preload";
      link.as = "script";
      link.href = address;
      link.fetchPriority = "low";
      document.head.appendChild(link);
    }
  );
})();
