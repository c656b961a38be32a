import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Executors;

/** Answers GET /item/N with a JSON document about N. usage: Server PORT */
public final class Server {
    private static final String[] WORDS = new String[20_000];
    private static final Map<String, Integer> COUNTS = new ConcurrentHashMap<>();

    private static void answer(HttpExchange exchange) throws IOException {
        String path = exchange.getRequestURI().getPath();
        int number = Integer.parseInt(path.substring(path.lastIndexOf('/') + 1));
        StringBuilder body = new StringBuilder("[");
        for (int i = 0; i < 20; i++) {
            String word = WORDS[(number * 31 + i * 977) % WORDS.length];
            int count = COUNTS.merge(word, 1, Integer::sum);
            body.append(i == 0 ? "" : ",").append("{\"id\":").append(i).append(",\"word\":\"")
                    .append(word).append("\",\"count\":").append(count).append('}');
        }
        byte[] bytes = body.append(']').toString().getBytes(StandardCharsets.UTF_8);
        exchange.sendResponseHeaders(200, bytes.length);
        exchange.getResponseBody().write(bytes);
        exchange.close();
    }

    public static void main(String[] arguments) throws IOException {
        for (int i = 0; i < WORDS.length; i++) {
            WORDS[i] = "w" + Long.toString((i * 2654435761L & 0xffffffffL) >> 8, 36);
        }
        int port = Integer.parseInt(arguments[0]);
        InetSocketAddress address = new InetSocketAddress(InetAddress.getLoopbackAddress(), port);
        HttpServer server = HttpServer.create(address, 0);
        server.setExecutor(Executors.newFixedThreadPool(4));
        server.createContext("/", Server::answer);
        server.start();
    }
}
