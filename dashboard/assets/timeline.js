// The timeline's view: what buttons, drags and links make of it. The server then says what is drawn there.
(function () {
  "use strict";
  var LEAST = 0.1; // µs, as the server has it
  var DELAY = 120; // ms: a wheel turns in many small steps
  var latest = 0;
  window.dash_clientside = window.dash_clientside || {};

  function within(t0, t1, end) {
    var whole = Math.max(end, LEAST);
    var span = Math.min(Math.max(t1 - t0, LEAST), whole);
    var from = Math.min(Math.max(t0, 0), whole - span);
    return { t0: from, t1: from + span };
  }

  function dragged(event, view) {
    if (!event) {
      return null;
    }
    if (event["xaxis.autorange"]) {
      return { t0: 0, t1: view.end };
    }
    var range = event["xaxis.range"] || [event["xaxis.range[0]"], event["xaxis.range[1]"]];
    if (range[0] === undefined || range[1] === undefined) {
      return null;
    }
    return { t0: Number(range[0]) * 1e6, t1: Number(range[1]) * 1e6 };
  }

  function pressed(what, view) {
    var span = view.t1 - view.t0;
    var middle = (view.t0 + view.t1) / 2;
    switch (what) {
      case "timeline-in": return { t0: middle - span / 4, t1: middle + span / 4 };
      case "timeline-out": return { t0: middle - span, t1: middle + span };
      case "timeline-earlier": return { t0: view.t0 - span / 2, t1: view.t1 - span / 2 };
      case "timeline-later": return { t0: view.t0 + span / 2, t1: view.t1 + span / 2 };
      case "timeline-whole": return { t0: 0, t1: view.end };
      default: return null;
    }
  }

  function width() {
    var graph = document.getElementById("timeline-graph");
    return graph ? Math.round(graph.clientWidth) : 1200;
  }

  // A double click anywhere in the drawing shows the whole run. By the mouse itself: what plotly says of a click on a
  // bar or a pixel has the figure drawn anew between the two, and its own double click then goes astray.
  var second = null;
  document.addEventListener("mousedown", function (event) {
    var inside = event.target.closest && event.target.closest("#timeline-graph .main-svg");
    second = inside && event.button === 0 && event.detail === 2 ? event : null;
  }, true);
  document.addEventListener("mouseup", function (event) {
    var first = second;
    second = null;
    if (!first || Math.abs(event.clientX - first.clientX) + Math.abs(event.clientY - first.clientY) > 6) {
      return; // none, or a drag that began with one
    }
    window.setTimeout(function () { // after plotly has told of the click, which may zoom
      var whole = document.getElementById("timeline-whole");
      if (whole) {
        whole.click();
      }
    }, 0);
  }, true);

  window.dash_clientside.timeline = {
    // buttons, drag, a click on a pixel, "show" of the panel → the view
    move: function () {
      var none = window.dash_clientside.no_update;
      var args = Array.prototype.slice.call(arguments);
      var view = args.pop();
      var click = args.pop();
      var event = args.pop();
      var triggered = window.dash_clientside.callback_context.triggered;
      var trigger = triggered.filter(function (each) { // a double click comes with what plotly says of its second
        return /\.n_clicks$/.test(each.prop_id);
      })[0] || triggered[0];
      if (!view || !trigger) {
        return none;
      }
      var by = trigger.prop_id.split(".");
      var wanted = null;
      if (by[1] === "relayoutData") {
        wanted = dragged(event, view);
      } else if (by[1] === "clickData") {
        var point = click && click.points && click.points[0];
        if (point && point.customdata === undefined && typeof point.x === "number") {
          var eighth = (view.t1 - view.t0) / 16;
          wanted = { t0: point.x * 1e6 - eighth, t1: point.x * 1e6 + eighth };
        }
      } else {
        wanted = pressed(by[0], view);
      }
      if (!wanted || !(wanted.t1 > wanted.t0)) {
        return none;
      }
      var next = within(wanted.t0, wanted.t1, view.end);
      if (Math.abs(next.t0 - view.t0) < 1e-6 && Math.abs(next.t1 - view.t1) < 1e-6) {
        return none;
      }
      next = Object.assign({}, view, next, { width: width() });
      if (by[1] !== "relayoutData") {
        return next;
      }
      var mine = ++latest;
      return new Promise(function (resolve) {
        window.setTimeout(function () {
          resolve(mine === latest ? next : none);
        }, DELAY);
      });
    },
    // a click on a bar, "choose" of the table, before and after of the panel → the number of the kernel
    pick: function (click, _picks, kernel) {
      var none = window.dash_clientside.no_update;
      var trigger = window.dash_clientside.callback_context.triggered[0];
      if (!trigger || trigger.value === null || trigger.value === undefined) {
        return none;
      }
      if (trigger.prop_id === "timeline-graph.clickData") {
        var point = click && click.points && click.points[0];
        return point && typeof point.customdata === "number" ? point.customdata : none;
      }
      var chosen = JSON.parse(trigger.prop_id.replace(/\.n_clicks$/, "")).kernel;
      return chosen === kernel ? none : chosen;
    },
    // the view and the kernel → the address bar
    address: function (view, kernel) {
      if (view) {
        var whole = view.t0 <= 0 && view.t1 >= view.end;
        var values = { t0: whole ? "" : String(+view.t0.toFixed(3)), t1: whole ? "" : String(+view.t1.toFixed(3)) };
        values.kernel = kernel === null || kernel === undefined ? "" : String(kernel);
        var url = new URL(window.location.href);
        Object.keys(values).forEach(function (name) {
          if (values[name]) {
            url.searchParams.set(name, values[name]);
          } else {
            url.searchParams.delete(name);
          }
        });
        if (/\/timeline$/.test(url.pathname)) {
          window.history.replaceState(window.history.state, "", url);
        }
      }
      return window.dash_clientside.no_update;
    },
  };
})();
