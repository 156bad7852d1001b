// What the shell does in the browser: the colour scheme, the page that is marked in the navigation, and where the
// focus goes when another page is shown without loading the document again.
(function () {
  "use strict";
  window.dash_clientside = window.dash_clientside || {};
  window.dash_clientside.shell = {
    // clicks of the switch → scheme, for figures, and the label of the switch
    scheme: function (clicks) {
      var scheme = window.fusionScheme.current();
      if (clicks) {
        scheme = window.fusionScheme.choose(scheme === "dark" ? "light" : "dark");
      }
      return [scheme, scheme === "dark" ? "Light" : "Dark"];
    },
  };

  // name → value, into the address bar without asking for the page again: a link shows what is seen
  window.fusionAddress = function (values) {
    var url = new URL(window.location.href);
    Object.keys(values).forEach(function (name) {
      if (values[name]) {
        url.searchParams.set(name, values[name]);
      } else {
        url.searchParams.delete(name);
      }
    });
    if (url.href !== window.location.href) {
      window.history.replaceState(window.history.state, "", url);
    }
    return window.dash_clientside.no_update;
  };

  window.dash_clientside.runs = {
    address: function (text, model, device, source, columns) {
      var sorted = (columns || []).filter(function (column) {
        return column.sort;
      })[0];
      var sort = sorted ? sorted.colId + "." + sorted.sort : "";
      return window.fusionAddress({ q: text, model: model, device: device, source: source, sort: sort });
    },
  };

  var shown = null;

  function markNavigation() {
    var path = window.location.pathname;
    document.querySelectorAll("header.top a.section").forEach(function (link) {
      var section = link.getAttribute("href");
      var here = section === "/" ? path === "/" || path.indexOf("/run/") === 0 : (path + "/").indexOf(section + "/") === 0;
      if (here) {
        link.setAttribute("aria-current", "page");
      } else {
        link.removeAttribute("aria-current");
      }
    });
  }

  function pageChanged() {
    markNavigation();
    var path = window.location.pathname;
    if (shown !== null && shown !== path) {
      window.scrollTo(0, 0);
      var main = document.getElementById("main");
      if (main) {
        main.focus({ preventScroll: true });
      }
    }
    shown = path;
  }

  function watch() {
    var content = document.getElementById("_pages_content");
    if (!content) {
      window.setTimeout(watch, 30);
      return;
    }
    new MutationObserver(pageChanged).observe(content, { childList: true });
    pageChanged();
  }
  watch();
})();
