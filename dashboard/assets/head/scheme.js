// Light or dark, before anything is drawn: the reader's choice, else what the system prefers.
(function () {
  "use strict";
  var KEY = "fusion-audit-scheme";
  function stored() {
    try {
      return window.localStorage.getItem(KEY);
    } catch (refused) {
      return null;
    }
  }
  function preferred() {
    return window.matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  }
  var root = document.documentElement;
  root.setAttribute("data-mantine-color-scheme", stored() || preferred());

  window.fusionScheme = {
    current: function () {
      return root.getAttribute("data-mantine-color-scheme") === "dark" ? "dark" : "light";
    },
    choose: function (scheme) {
      root.setAttribute("data-mantine-color-scheme", scheme);
      try {
        window.localStorage.setItem(KEY, scheme);
      } catch (refused) {
        // Without storage the choice holds for this page.
      }
      return scheme;
    },
  };
})();
