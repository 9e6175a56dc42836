//! The page that shows the API: it works without a network, and may load nothing from elsewhere.

use super::support::{ask, start};

#[tokio::test(flavor = "multi_thread")]
async fn the_page_is_ours_alone_and_may_load_nothing_from_elsewhere() {
    let running = start().await;
    for (path, kind) in [
        ("/docs", "text/html; charset=utf-8"),
        ("/docs/page.js", "text/javascript; charset=utf-8"),
        ("/docs/style.css", "text/css; charset=utf-8"),
    ] {
        let reply = ask(running.http, &format!("GET {path}"), "");
        assert_eq!((reply.status, reply.header("content-type")), (200, Some(kind)), "{path}");
        let policy = reply.header("content-security-policy").unwrap();
        assert!(policy.starts_with("default-src 'none'; script-src 'self';"), "{policy}");
        assert!(!policy.contains("unsafe") && !policy.contains("http"), "{policy}");
        assert_eq!(reply.header("x-content-type-options"), Some("nosniff"));
        for elsewhere in ["http:", "https:", "src=\"//", "href=\"//", "url(", "@import", "import("]
        {
            assert!(!reply.body.contains(elsewhere), "{path}: {elsewhere}");
        }
        for markup in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("] {
            assert!(!reply.body.contains(markup), "{path}: {markup}");
        }
    }
    let page = ask(running.http, "GET /docs", "").body;
    // Inline scripts and styles would be refused by the policy, and the page be dead.
    for inline in ["<style", "style=", "onclick=", "onload=", "onerror=", "javascript:"] {
        assert!(!page.contains(inline), "{inline}");
    }
    assert_eq!(page.matches("<script src=\"docs/page.js\" defer></script>").count(), 1);
    assert_eq!(page.matches("<script").count(), 1);
    assert_eq!(ask(running.http, "GET /docs/other.js", "").status, 404);
    assert_eq!(ask(running.http, "POST /docs", "").status, 404);
}
