// Follows what is served: the view of the page is asked for again and again, and taken where it is new.

const POLL = 1000; // milliseconds

function say(text) {
  byId("status").hidden = !text;
  if (byId("status").textContent !== text) byId("status").textContent = text;
}

let etag = "";
// `take` gets each new view; `notice` gives what there is to say while all is well.
async function follow(take, notice = () => "") {
  try {
    if (!document.hidden) {
      const answer = await fetch("view.json", { cache: "no-store", headers: etag ? { "If-None-Match": etag } : {} });
      if (answer.status === 200) {
        const view = await answer.json();
        etag = answer.headers.get("ETag") ?? "";
        take(view);
      } else if (answer.status !== 304) throw new Error(answer.statusText);
      say(notice());
    }
  } catch {
    say("grpokit watch does not answer. The page shows the last data it got, and keeps trying.");
  }
  setTimeout(() => follow(take, notice), POLL);
}
