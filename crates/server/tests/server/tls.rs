//! TLS at the listeners, with certificates that live as long as their test.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;

use rcgen::{CertificateParams, KeyPair};
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use tollgate_server::Server;
use tollgate_server::telemetry::log::LevelHandle;
use tollgate_server::tls::{TlsError, TlsFiles};

use super::support::{
    Running, TempDir, connect, raw, reply, settings, start_with, until, whole_check,
};

/// A certificate that nobody signed, and its key.
struct Pair {
    cert: String,
    key: String,
    der: CertificateDer<'static>,
}

impl Pair {
    fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        let cert = params.self_signed(&key).unwrap();
        Self { cert: cert.pem(), key: key.serialize_pem(), der: cert.der().clone() }
    }

    fn write(&self, dir: &Path) -> TlsFiles {
        let files = TlsFiles { cert: dir.join("tls.crt"), key: dir.join("tls.key") };
        std::fs::write(&files.cert, &self.cert).unwrap();
        std::fs::write(&files.key, &self.key).unwrap();
        files
    }

    /// A connection to a server that shows this certificate.
    fn connect(&self, at: SocketAddr, alpn: &[u8]) -> std::io::Result<Client> {
        let mut roots = RootCertStore::empty();
        roots.add(self.der.clone()).unwrap();
        let mut config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![alpn.to_vec()];
        let name = ServerName::try_from("localhost").unwrap();
        let mut connection = ClientConnection::new(Arc::new(config), name).unwrap();
        let mut stream = connect(at);
        while connection.is_handshaking() {
            connection.complete_io(&mut stream)?;
        }
        Ok(StreamOwned::new(connection, stream))
    }
}

type Client = StreamOwned<ClientConnection, TcpStream>;

/// One request on a connection that stays, and its answer's status and body.
fn get(client: &mut Client, path: &str) -> (u16, String) {
    write!(client, "GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let reply = reply(client);
    (reply.status, reply.body)
}

/// A metric over TLS.
fn metric(pair: &Pair, at: SocketAddr, name: &str) -> u64 {
    let page = get(&mut pair.connect(at, b"http/1.1").unwrap(), "/metrics").1;
    let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {name} in {page}")).parse().unwrap()
}

async fn start(files: TlsFiles) -> Running {
    start_with(|settings| settings.tls = Some(files)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_listeners_speak_tls_and_nothing_else() {
    let (dir, pair) = (TempDir::new(), Pair::new());
    let running = start(pair.write(dir.path())).await;

    for at in [running.http, running.admin] {
        let mut client = pair.connect(at, b"http/1.1").unwrap();
        assert_eq!(client.conn.alpn_protocol(), Some(&b"http/1.1"[..]));
        assert_eq!(get(&mut client, "/healthz"), (200, "ok\n".to_owned()));
        assert_eq!(get(&mut client, "/readyz").0, 200, "on the same connection");
        assert!(pair.connect(at, b"h2").is_err(), "HTTP/2 is not spoken here");
        assert!(Pair::new().connect(at, b"http/1.1").is_err(), "another's certificate");
    }
    let mut client = pair.connect(running.http, b"http/1.1").unwrap();
    for left in [2, 1] {
        let check = whole_check("", r#"{"domain":"shop","attributes":{"user":"u"}}"#);
        client.write_all(check.as_bytes()).unwrap();
        assert_eq!(reply(&mut client).json()["limits"][0]["remaining"], left);
    }
    let grpc = running.server.address(tollgate_server::Listener::Grpc).unwrap();
    let client = pair.connect(grpc, b"h2").unwrap();
    assert_eq!(client.conn.alpn_protocol(), Some(&b"h2"[..]));
    assert!(pair.connect(grpc, b"http/1.1").is_err(), "only HTTP/2 is spoken there");
    let plain = raw(running.http, b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(!plain.starts_with(b"HTTP"), "{}", plain.escape_ascii());
}

/// C21, C30
#[tokio::test(flavor = "multi_thread")]
async fn garbage_instead_of_a_handshake_ends_the_connection_and_is_counted() {
    let (dir, pair) = (TempDir::new(), Pair::new());
    let running = start(pair.write(dir.path())).await;
    let mut hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".to_vec();
    hello.resize(517, 0xff);

    for garbage in [&b"\x00"[..].repeat(65_536), &b"\xff".to_vec(), &hello] {
        let mut stream = connect(running.http);
        // The server may have closed before it was all sent.
        let _ = stream.write_all(garbage);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut reply = Vec::new();
        let _ = stream.read_to_end(&mut reply);
        assert!(reply.len() < 16, "an alert at most: {}", reply.escape_ascii());
    }

    let failed = || metric(&pair, running.admin, "tollgate_tls_handshakes_failed_total");
    until("each is counted", || failed() == 3).await;
    until("none is left open", || {
        metric(&pair, running.admin, "tollgate_connections{listener=\"http\"}") == 0
    })
    .await;
    assert_eq!(get(&mut pair.connect(running.http, b"http/1.1").unwrap(), "/healthz").0, 200);
}

/// The files are links into a directory that is itself a link, as Kubernetes mounts secrets.
#[tokio::test(flavor = "multi_thread")]
async fn another_certificate_is_used_as_soon_as_the_links_are_swapped() {
    let (dir, first, second) = (TempDir::new(), Pair::new(), Pair::new());
    let at = |name: &str| dir.path().join(name);
    for (name, pair) in [("a", &first), ("b", &second)] {
        std::fs::create_dir(at(name)).unwrap();
        pair.write(&at(name));
    }
    symlink("a", at("..data")).unwrap();
    symlink("..data/tls.crt", at("tls.crt")).unwrap();
    symlink("..data/tls.key", at("tls.key")).unwrap();
    let running = start(TlsFiles { cert: at("tls.crt"), key: at("tls.key") }).await;
    let mut old = first.connect(running.http, b"http/1.1").unwrap();
    assert_eq!(get(&mut old, "/healthz").0, 200);

    symlink("b", at("..new")).unwrap();
    std::fs::rename(at("..new"), at("..data")).unwrap();

    until("the second is shown", || second.connect(running.http, b"http/1.1").is_ok()).await;
    assert!(first.connect(running.http, b"http/1.1").is_err());
    assert_eq!(get(&mut old, "/healthz").0, 200, "who is connected stays so");
    assert_eq!(metric(&second, running.admin, "tollgate_tls_loads_total"), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_pair_changes_nothing_and_is_told() {
    let (dir, first, second) = (TempDir::new(), Pair::new(), Pair::new());
    let files = first.write(dir.path());
    let running = start(files.clone()).await;
    let tls = running.server.state().tls.clone().unwrap();
    let trouble = |pair: &Pair| metric(pair, running.admin, "tollgate_tls_trouble");

    for (cert, key) in [
        (&second.cert, &first.key),
        (&first.cert, &"-----BEGIN PRIVATE KEY-----\ncanary\n".to_owned()),
        (&String::new(), &first.key),
        (&"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n".to_owned(), &first.key),
    ] {
        std::fs::write(&files.cert, cert).unwrap();
        std::fs::write(&files.key, key).unwrap();
        running.server.reload().await;
        assert_eq!(trouble(&first), 1, "and it is said over the first");
        let why = tls.error().unwrap();
        assert!(why.contains("tls."), "{why}");
        assert!(!why.contains("canary") && !format!("{tls:?}").contains("canary"), "{why}");
    }
    std::fs::remove_file(&files.key).unwrap();
    running.server.reload().await;
    assert!(tls.error().unwrap().contains("cannot read"));

    second.write(dir.path());
    running.server.reload().await;
    assert_eq!(trouble(&second), 0);
}

/// Its bytes stay, and only who may read them changes.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_comes_to_be_open_to_others_is_warned_about() {
    use std::os::unix::fs::PermissionsExt as _;
    let (dir, first, second) = (TempDir::new(), Pair::new(), Pair::new());
    let files = first.write(dir.path());
    let mode = |mode: u32| {
        std::fs::set_permissions(&files.key, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    mode(0o600);
    let (cert, key) = (files.cert.to_str().unwrap(), files.key.to_str().unwrap());
    let program = super::program::serve(&["--tls-cert", cert, "--tls-key", key], &[]);

    mode(0o644);
    program.signal("HUP");
    second.write(dir.path());
    let shown = || second.connect(program.at[0], b"http/1.1").is_ok();
    until("the files were looked at since", shown).await;

    let (_, log) = program.end();
    let told = log.matches("other users of this machine can read or change the key").count();
    assert_eq!(told, 1, "{log}");
}

/// The commands ask over TLS, and believe only whom they are told to.
#[tokio::test(flavor = "multi_thread")]
async fn the_commands_speak_tls_to_whom_they_believe() {
    let (dir, other, pair) = (TempDir::new(), TempDir::new(), Pair::new());
    let files = pair.write(dir.path());
    let running = start(files.clone()).await;
    let stranger = Pair::new().write(other.path()).cert;
    let (good, stranger) = (files.cert.to_str().unwrap(), stranger.to_str().unwrap());
    let server = format!("https://localhost:{}", running.http.port());
    let admin = format!("https://localhost:{}", running.admin.port());
    let run = |args: &[&str]| {
        let output = super::program::run(args);
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8_lossy(&text).into_owned())
    };

    let (code, told) = run(&["check", "--server", &server, "--ca-file", good, "shop", "user=u"]);
    assert_eq!(code, Some(0), "{told}");
    let (code, told) = run(&["rules", "--admin", &admin, "--ca-file", good, "get"]);
    assert_eq!(code, Some(0), "{told}");
    assert!(told.starts_with("version: 1\ndomain: shop\n"), "{told}");
    for (args, why) in [
        (&["check", "--server", &server, "--ca-file", stranger, "shop"][..], "cannot trust "),
        (&["check", "--server", &server, "shop"], "certificate"),
        (
            &["check", "--server", &server, "--ca-file", "/none.pem", "shop"],
            "/none.pem is not a file",
        ),
        (
            &["check", "--server", &server, "--ca-file", files.key.to_str().unwrap(), "shop"],
            "holds no PEM certificate",
        ),
        (&["check", "--server", "ftp://a", "shop"], "is not http://host:port or https://host:port"),
    ] {
        let (code, told) = run(args);
        assert_eq!(code, Some(2), "{args:?}: {told}");
        assert!(told.contains(why), "{args:?}: {told}");
    }
}

#[tokio::test]
async fn a_server_that_cannot_speak_tls_as_told_does_not_start() {
    let (dir, first, second) = (TempDir::new(), Pair::new(), Pair::new());
    let files = first.write(dir.path());
    std::fs::write(&files.key, &second.key).unwrap();
    let nowhere = TlsFiles { cert: dir.path().join("none.pem"), key: files.key.clone() };

    for (files, why) in [(files, "cannot use"), (nowhere, "none.pem: No such file")] {
        let mut settings = settings(&dir);
        settings.tls = Some(files);
        let error = Server::start(settings, LevelHandle::default()).await.unwrap_err();
        assert!(error.is::<TlsError>(), "{error:?}");
        assert!(error.to_string().contains(why), "{error}");
    }
}
