// A trace that is dropped or chosen goes to the service as a stream; then a job reads it, whose page is shown.
(function () {
  "use strict";

  function part(name) {
    return document.getElementById(name);
  }

  function say(text) {
    var status = part("upload-status");
    if (status) {
      status.textContent = text;
    }
  }

  function reason(request) {
    try {
      var answer = JSON.parse(request.responseText);
      return answer.error || answer.message || (typeof answer.detail === "string" ? answer.detail : "it was refused");
    } catch (unreadable) {
      return "the service answered " + request.status;
    }
  }

  function send(method, address, body, type, progress) {
    return new Promise(function (done, failed) {
      var request = new XMLHttpRequest();
      request.open(method, address);
      request.setRequestHeader("Content-Type", type);
      request.upload.onprogress = progress || null;
      request.onload = function () {
        if (request.status >= 200 && request.status < 300) {
          done(JSON.parse(request.responseText));
        } else {
          failed(reason(request));
        }
      };
      request.onerror = function () {
        failed("the service can't be reached");
      };
      request.send(body);
    });
  }

  function show(path) {
    window.history.pushState({}, "", path);
    window.dispatchEvent(new CustomEvent("_dashprivate_pushstate"));
  }

  function upload(file) {
    var bar = document.querySelector("#upload-drop progress");
    var choose = document.querySelector("#upload-drop button");
    bar.hidden = false;
    choose.disabled = true;
    say("Sending " + file.name + " …");
    send("POST", "/api/v1/uploads?name=" + encodeURIComponent(file.name), file, "application/octet-stream", function (event) {
      if (event.lengthComputable) {
        var percent = Math.floor((100 * event.loaded) / event.total);
        bar.value = percent;
        say("Sending " + file.name + ": " + percent + " % of " + (event.total / 1e6).toFixed(1) + " MB");
      }
    })
      .then(function (kept) {
        say("Sent. A job reads it.");
        return send("POST", "/api/v1/jobs", JSON.stringify({ kind: "import", run: kept.id }), "application/json");
      })
      .then(function (job) {
        show("/jobs/" + encodeURIComponent(job.id));
      })
      .catch(function (why) {
        say("Not imported: " + why);
      })
      .then(function () {
        bar.hidden = true;
        choose.disabled = false;
      });
  }

  document.addEventListener("click", function (event) {
    if (!event.target.closest || !event.target.closest("#upload-drop button")) {
      return;
    }
    var picker = document.createElement("input");
    picker.type = "file";
    picker.accept = ".json,.gz";
    picker.onchange = function () {
      if (picker.files.length) {
        upload(picker.files[0]);
      }
    };
    picker.click();
  });

  ["dragenter", "dragover", "dragleave", "drop"].forEach(function (kind) {
    document.addEventListener(kind, function (event) {
      var drop = event.target.closest && event.target.closest("#upload-drop");
      if (!drop) {
        return;
      }
      event.preventDefault();
      drop.classList.toggle("over", kind === "dragenter" || kind === "dragover");
      if (kind === "drop" && event.dataTransfer.files.length) {
        upload(event.dataTransfer.files[0]);
      }
    });
  });
})();
