package tollgate.interop;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import org.redisson.Redisson;
import org.redisson.api.RBucket;
import org.redisson.api.RFencedLock;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.client.codec.StringCodec;
import org.redisson.config.Config;

/**
 * A Redisson client that does what it is told on its standard input, a line each:
 *
 * <pre>number TAB actor TAB command TAB kind TAB name [TAB argument]...</pre>
 *
 * and answers on its output, in whatever order things come to their end:
 *
 * <pre>number TAB "ok" TAB value
 * number TAB "error" TAB class TAB message</pre>
 *
 * An actor is a thread: Redisson knows holders by it. The kind is "lock" or "fenced". Times are
 * milliseconds; a lease of -1 is one that Redisson's watchdog renews.
 *
 * <p>Usage: Client PORT WATCHDOG_TIMEOUT. It ends with its input.
 */
public final class Client {
  private final RedissonClient redisson;
  private final Map<String, ExecutorService> actors = new ConcurrentHashMap<>();
  private final PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);

  private Client(RedissonClient redisson) {
    this.redisson = redisson;
  }

  public static void main(String[] args) throws IOException {
    Config config = new Config();
    config.setLockWatchdogTimeout(Long.parseLong(args[1]));
    config
        .useSingleServer()
        .setAddress("redis://127.0.0.1:" + args[0])
        .setConnectionMinimumIdleSize(2)
        .setConnectionPoolSize(16);
    Client client = new Client(Redisson.create(config));
    client.answer("0", "ok\tready");
    BufferedReader in =
        new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    for (String line = in.readLine(); line != null; line = in.readLine()) {
      client.obey(line.split("\t", -1));
    }
    // Locks that are held stay held, as by a client that was killed.
    Runtime.getRuntime().halt(0);
  }

  private void obey(String[] words) {
    ExecutorService actor =
        actors.computeIfAbsent(words[1], name -> Executors.newSingleThreadExecutor());
    actor.execute(
        () -> {
          try {
            answer(words[0], "ok\t" + act(words));
          } catch (Exception e) {
            String message = String.valueOf(e.getMessage()).replaceAll("\\s", " ");
            answer(words[0], "error\t" + e.getClass().getSimpleName() + "\t" + message);
          }
        });
  }

  private void answer(String number, String what) {
    synchronized (out) {
      out.println(number + "\t" + what);
    }
  }

  private Object act(String[] words) throws InterruptedException {
    String name = words[4];
    RLock lock =
        words[3].equals("fenced") ? redisson.getFencedLock(name) : redisson.getLock(name);
    switch (words[2]) {
      case "lock":
        lock.lock(number(words, 5), TimeUnit.MILLISECONDS);
        return "";
      case "try-lock":
        return lock.tryLock(number(words, 5), number(words, 6), TimeUnit.MILLISECONDS);
      case "token":
        return ((RFencedLock) lock).lockAndGetToken(number(words, 5), TimeUnit.MILLISECONDS);
      case "unlock":
        lock.unlock();
        return "";
      case "force-unlock":
        return lock.forceUnlock();
      case "is-locked":
        return lock.isLocked();
      case "hold-count":
        return lock.getHoldCount();
      case "left":
        return lock.remainTimeToLive();
      case "storm":
        return storm(lock, words[5], number(words, 6));
      default:
        throw new IllegalArgumentException("no such command: " + words[2]);
    }
  }

  /** Adds one to a number in so many sections, by reading it and writing it. */
  private long storm(RLock lock, String counter, long sections) {
    RBucket<String> number = redisson.getBucket(counter, StringCodec.INSTANCE);
    for (long i = 0; i < sections; i++) {
      lock.lock();
      try {
        number.set(String.valueOf(Long.parseLong(number.get()) + 1));
      } finally {
        lock.unlock();
      }
    }
    return sections;
  }

  private static long number(String[] words, int place) {
    return Long.parseLong(words[place]);
  }
}
