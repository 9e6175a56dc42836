"""The Redis protocol as redis-py speaks it: redis_py.py HOST PORT PASSWORD."""

import sys

import redis

host, port, password = sys.argv[1], int(sys.argv[2]), sys.argv[3]


def is_(got, wanted):
    assert got == wanted, f"{got!r} instead of {wanted!r}"


def raises(words, wanted, client):
    try:
        client.execute_command(*words)
    except redis.ResponseError as error:
        assert wanted in str(error), f"{error} instead of {wanted}"
    else:
        raise AssertionError(f"{words} was answered")


def throttle(client, protocol):
    key = f"user-{protocol}"
    is_(client.execute_command("CL.THROTTLE", key, 15, 30, 60), [0, 16, 15, -1, 2])
    is_(client.delete(key, "nobody"), 1)
    is_(client.execute_command("CL.THROTTLE", key, 0, 1, 3600), [0, 1, 0, -1, 3600])
    limited = client.execute_command("CL.THROTTLE", key, 0, 1, 3600)
    is_((limited[0], limited[1], limited[2]), (1, 1, 0))
    assert 0 < limited[3] <= 3600, limited
    is_(client.execute_command("CL.THROTTLE", f"peek-{protocol}", 2, 1, 3600, 0)[0], 0)
    raises(("CL.THROTTLE", key, "x", 1, 60), "integer", client)
    raises(("CL.THROTTLE", key), "Usage", client)


def rules(client, protocol):
    def check(*words):
        reply = client.execute_command(*words)
        if isinstance(reply, dict):
            return reply
        return dict(zip(reply[::2], reply[1::2]))

    user = ("user", f"alice-{protocol}")
    for left in (2, 1, 0):
        is_(check("TG.CHECK", "shop", 1, *user)["remaining"], left)
    refused = check("TG.CHECK", "shop", 1, *user)
    is_((refused["allowed"], refused["rule"]), (0, "per-user"))
    assert refused["retry_after_ms"] > 0, refused
    is_(check("TG.PEEK", "shop", 1, *user)["allowed"], 0)
    is_(client.execute_command("TG.RESET", "shop", *user), 1)
    is_(check("TG.CHECK", "shop", 1, *user)["allowed"], 1)


def pipelines(client, protocol):
    with client.pipeline(transaction=False) as pipe:
        for number in range(1000):
            pipe.execute_command("CL.THROTTLE", f"pipe-{protocol}-{number % 10}", 9, 1, 3600)
        replies = pipe.execute()
    is_(sum(reply[0] == 0 for reply in replies), 100)
    with client.pipeline(transaction=False) as pipe:
        pipe.echo("a").execute_command("NO.SUCH").ping()
        replies = pipe.execute(raise_on_error=False)
    is_(replies[0], "a")
    assert isinstance(replies[1], redis.ResponseError), replies
    is_(replies[2], True)


def connection(client, protocol):
    is_(client.ping(), True)
    is_(client.echo("hello"), "hello")
    is_(client.execute_command("SELECT", 0), True)
    client.client_setname("redis-py")
    assert "tollgate_version" in client.info(), client.info()


for protocol in (2, 3):
    client = redis.Redis(
        host=host,
        port=port,
        password=password,
        protocol=protocol,
        client_name="tests",
        decode_responses=True,
    )
    connection(client, protocol)
    throttle(client, protocol)
    rules(client, protocol)
    pipelines(client, protocol)
    client.close()

try:
    redis.Redis(host=host, port=port, password="wrong").ping()
except redis.AuthenticationError:
    pass
else:
    raise AssertionError("a wrong password was taken")
print("redis-py", redis.__version__)
