//! The Redis protocol, byte by byte.

use super::support::{Wire, ask, encode, metric, start, start_with};

/// Five integers, as they are sent.
fn five(numbers: [i64; 5]) -> Vec<u8> {
    let lines: String = numbers.iter().map(|number| format!(":{number}\r\n")).collect();
    format!("*5\r\n{lines}").into_bytes()
}

#[tokio::test(flavor = "multi_thread")]
async fn cl_throttle_answers_as_redis_cell_does() {
    let running = start().await;
    let mut client = Wire::new(running.resp);

    client.all(&[
        (&["CL.THROTTLE", "user123", "15", "30", "60"], five([0, 16, 15, -1, 2])),
        (&["cl.throttle", "user123", "15", "30", "60", "15"], five([0, 16, 0, -1, 32])),
        (&["CL.THROTTLE", "user123", "15", "30", "60"], five([1, 16, 0, 2, 32])),
        (&["CL.THROTTLE", "user123", "15", "30", "60", "17"], five([1, 16, 0, -1, 32])),
        (&["CL.THROTTLE", "user123", "15", "30", "60", "0"], five([0, 16, 0, -1, 32])),
        (&["CL.THROTTLE", "another", "15", "30", "60", "0"], five([0, 16, 16, -1, 0])),
    ]);
}

#[tokio::test(flavor = "multi_thread")]
async fn del_resets_a_key_whatever_its_quota() {
    let running = start().await;
    let mut client = Wire::new(running.resp);

    client.all(&[
        (&["CL.THROTTLE", "a", "0", "1", "86400"], five([0, 1, 0, -1, 86_400])),
        (&["CL.THROTTLE", "b", "99", "1", "3600", "100"], five([0, 100, 0, -1, 360_000])),
        (&["CL.THROTTLE", "a", "0", "1", "86400"], five([1, 1, 0, 86_400, 86_400])),
        (&["DEL", "a", "b", "nobody"], b":2\r\n".to_vec()),
        (&["CL.THROTTLE", "a", "0", "1", "86400"], five([0, 1, 0, -1, 86_400])),
        (&["CL.THROTTLE", "b", "99", "1", "3600", "0"], five([0, 100, 100, -1, 0])),
        (&["UNLINK", "a"], b":1\r\n".to_vec()),
        (&["DEL"], b"-ERR wrong number of arguments for 'del' command\r\n".to_vec()),
    ]);
}

/// Row 8: bad values never crash anything.
#[tokio::test(flavor = "multi_thread")]
async fn bad_values_get_redis_cells_errors() {
    let running = start().await;
    let mut client = Wire::new(running.resp);

    let usage = b"-Cell error: Usage: cl.throttle <key> <max_burst> <count per period> <period> [<quantity>]\r\n";
    client.asks(&["CL.THROTTLE"], usage);
    client.asks(&["CL.THROTTLE", "k", "1", "1"], usage);
    client.asks(&["CL.THROTTLE", "k", "1", "1", "1", "1", "1"], usage);
    client.asks(
        &["CL.THROTTLE", "k", "1.5", "1", "1"],
        b"-Cell error: Couldn't parse as integer: 1.5\r\n",
    );
    client.asks(
        &["CL.THROTTLE", "k", "1", "0", "1"],
        b"-Cell error: Zero rates are not supported\r\n",
    );
    for bad in ["-1", "-9223372036854775808", "9223372036854775807"] {
        for place in 2..5 {
            let mut words = ["CL.THROTTLE", "k", "1", "1", "1"];
            words[place] = bad;
            assert!(client.line(&words).starts_with("-Cell error: "), "{words:?}");
        }
    }
    let long = "k".repeat(1_024);
    assert!(client.line(&["CL.THROTTLE", &long, "1", "1", "1"]).starts_with("-ERR a key of 1025"));
    client.asks(&["CL.THROTTLE", &long[1..], "0", "1", "1"], &five([0, 1, 0, -1, 1]));
    client.asks(&["CL.THROTTLE", "", "0", "1", "1"], &five([0, 1, 0, -1, 1]));
    client.asks(&["PING"], b"+PONG\r\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pipeline_is_answered_in_order_however_it_is_cut() {
    let running = start().await;
    let mut commands = Vec::new();
    let mut replies = Vec::new();
    for number in 0..500_i64 {
        commands.extend(encode(&["CL.THROTTLE", "p", "999", "1", "60"]));
        replies.extend(five([0, 1_000, 999 - number, -1, 60 * (number + 1)]));
        commands.extend(encode(&["ECHO", &number.to_string()]));
        let echo = number.to_string();
        replies.extend(format!("${}\r\n{echo}\r\n", echo.len()).into_bytes());
    }

    let mut at_once = Wire::new(running.resp);
    at_once.send(&commands);
    let mut got = vec![0; replies.len()];
    std::io::Read::read_exact(&mut at_once.0, &mut got).unwrap();
    // The clock goes on meanwhile, so the last number may be a second less.
    let first = five([0, 1_000, 999, -1, 60]);
    assert_eq!(&got[..first.len()], &first[..]);
    assert!(got.ends_with(b"$3\r\n499\r\n"));
    assert_eq!(got.iter().filter(|byte| **byte == b'*').count(), 500);

    let mut dribbled = Wire::new(running.resp);
    for byte in encode(&["ECHO", "slow"]) {
        dribbled.send(&[byte]);
    }
    dribbled.expect(b"$4\r\nslow\r\n");
    dribbled.send(b"PING\r\n\r\n*0\r\nECHO 'a b'\n");
    dribbled.expect(b"+PONG\r\n$3\r\na b\r\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn ordinary_clients_find_the_commands_they_begin_with() {
    let running = start().await;
    let mut client = Wire::new(running.resp);

    client.asks(&["SELECT", "0"], b"+OK\r\n");
    client.asks(&["SELECT", "1"], b"-ERR DB index is out of range\r\n");
    client.asks(&["CLIENT", "SETNAME", "me"], b"+OK\r\n");
    client.asks(&["CLIENT", "GETNAME"], b"$2\r\nme\r\n");
    client.asks(&["CLIENT", "SETINFO", "LIB-NAME", "x"], b"+OK\r\n");
    client.asks(&["COMMAND", "COUNT"], b":16\r\n");
    client.asks(&["COMMAND", "DOCS"], b"*0\r\n");
    client.asks(&["PING", "hi"], b"$2\r\nhi\r\n");
    client.asks(&["GET", "k"], b"-ERR unknown command 'GET'\r\n");
    client.asks(&["AUTH", "x"], b"-ERR AUTH <password> called without any password configured for the default user. Are you sure your configuration is correct?\r\n");
    client.asks(&["HELLO", "4"], b"-NOPROTO unsupported protocol version\r\n");
    client.asks(&["RESET"], b"+RESET\r\n");
    client.asks(&["CLIENT", "GETNAME"], b"$0\r\n\r\n");
    assert!(client.line(&["HELLO", "3"]).starts_with("%7"));
    client.asks(&["QUIT"], b"$6\r\nserver\r\n$8\r\ntollgate\r\n$7\r\nversion\r\n$5\r\n0.1.0\r\n$5\r\nproto\r\n:3\r\n$2\r\nid\r\n:1\r\n$4\r\nmode\r\n$10\r\nstandalone\r\n$4\r\nrole\r\n$6\r\nmaster\r\n$7\r\nmodules\r\n*0\r\n+OK\r\n");
    assert_eq!(client.rest(), b"");
}

#[tokio::test(flavor = "multi_thread")]
async fn with_a_token_nothing_is_answered_before_it() {
    let running = start_with(|settings| settings.api_token = Some("hush".parse().unwrap())).await;
    let mut client = Wire::new(running.resp);

    for words in [&["PING"][..], &["CL.THROTTLE", "k", "1", "1", "1"], &["TG.CHECK", "shop", "1"]] {
        client.asks(words, b"-NOAUTH Authentication required.\r\n");
    }
    let wrong = b"-WRONGPASS invalid username-password pair or user is disabled.\r\n";
    client.asks(&["AUTH", "hus"], wrong);
    client.asks(&["AUTH", "default", "hushh"], wrong);
    client.asks(&["HELLO", "3", "AUTH", "default", ""], wrong);
    client.asks(&["AUTH", "somebody", "hush"], wrong);
    client.asks(&["HELLO", "3", "AUTH", "somebody", "hush"], wrong);
    client.asks(&["AUTH", "default", "hush"], b"+OK\r\n");
    client.asks(&["PING"], b"+PONG\r\n");
    client.asks(&["RESET"], b"+RESET\r\n");
    client.asks(&["PING"], b"-NOAUTH Authentication required.\r\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn tg_check_peek_and_reset_go_by_the_rules() {
    let running = start().await;
    let mut client = Wire::new(running.resp);
    let login = ["shop", "1", "path", "/login", "method", "post", "ip", "203.0.113.9"];
    let check: Vec<&str> = ["TG.CHECK"].into_iter().chain(login).collect();
    let peek: Vec<&str> = ["TG.PEEK"].into_iter().chain(login).collect();
    let reply = |allowed: u8, remaining: u8, retry: &str, reset: &str, rule: &str| {
        format!(
            "*14\r\n$7\r\nallowed\r\n:{allowed}\r\n$9\r\nremaining\r\n:{remaining}\r\n\
             $14\r\nretry_after_ms\r\n:{retry}\r\n$14\r\nreset_after_ms\r\n:{reset}\r\n\
             $13\r\nrules_version\r\n:1\r\n$6\r\nreason\r\n$6\r\nlimits\r\n$4\r\nrule\r\n{rule}"
        )
        .into_bytes()
    };

    client.asks(&peek, &reply(1, 2, "-1", "0", "$-1\r\n"));
    client.asks(&check, &reply(1, 1, "-1", "60000", "$-1\r\n"));
    client.command(&check);
    client.command(&check);
    client.command(&["ECHO", "end"]);
    let mut all = Vec::new();
    while !all.ends_with(b"$3\r\nend\r\n") {
        let mut byte = [0];
        std::io::Read::read_exact(&mut client.0, &mut byte).unwrap();
        all.push(byte[0]);
    }
    let all = String::from_utf8(all).unwrap();
    assert!(all.contains("allowed\r\n:0\r\n") && all.contains("$12\r\nlogin-per-ip\r\n"), "{all}");

    client.asks(
        &["TG.RESET", "shop", "path", "/login", "method", "POST", "ip", "203.0.113.9"],
        b":1\r\n",
    );
    client.asks(&peek, &reply(1, 2, "-1", "0", "$-1\r\n"));
    client
        .asks(&["TG.CHECK", "shop"], b"-ERR wrong number of arguments for 'tg.check' command\r\n");
    client
        .asks(&["TG.CHECK", "shop", "x"], b"-ERR the cost is not a whole number of at least 0\r\n");
    client
        .asks(&["TG.CHECK", "shop", "1", "ip", "nowhere"], b"-ERR ip: `ip` is not an address\r\n");
    client.asks(
        &["TG.CHECK", "shop", "1", "a", "1", "a", "2"],
        b"-ERR a: the attribute is given twice\r\n",
    );
    let metric = |outcome: &str| {
        metric(
            running.admin,
            &format!("tollgate_requests_total{{protocol=\"resp\",outcome=\"{outcome}\"}}"),
        )
    };
    assert_eq!([metric("allowed"), metric("refused"), metric("error")], [2, 1, 4]);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_connection_too_many_is_told_so_and_the_rest_go_on() {
    let running = start_with(|settings| settings.max_connections = 2).await;
    let mut first = Wire::new(running.resp);
    let mut second = Wire::new(running.resp);
    first.asks(&["PING"], b"+PONG\r\n");
    second.asks(&["PING"], b"+PONG\r\n");

    let mut third = Wire::new(running.resp);

    assert_eq!(third.rest(), b"-ERR max number of clients reached\r\n");
    first.asks(&["PING"], b"+PONG\r\n");
    drop(second);
    // The admin listener has room for two as well, and the last may not have left it yet.
    let line = "\ntollgate_connections{listener=\"resp\"} 1\n";
    let says = || ask(running.admin, "GET /metrics", "").body.contains(line);
    super::support::until("the second is gone", says).await;
    Wire::new(running.resp).asks(&["PING"], b"+PONG\r\n");
    assert_eq!(ask(running.http, "GET /healthz", "").status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn several_threads_serve_one_key() {
    let running = start_with(|settings| settings.resp_threads = 3).await;
    let mut clients: Vec<Wire> = (0..9).map(|_| Wire::new(running.resp)).collect();

    let mut admitted = 0;
    for _ in 0..4 {
        for client in &mut clients {
            let mut reply = [0; 8];
            client.command(&["CL.THROTTLE", "k", "9", "1", "3600"]);
            std::io::Read::read_exact(&mut client.0, &mut reply).unwrap();
            admitted += usize::from(&reply == b"*5\r\n:0\r\n");
            let mut rest = [0; 64];
            let _ = std::io::Read::read(&mut client.0, &mut rest).unwrap();
        }
    }
    assert_eq!(admitted, 10);
}
