import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/** Counts words in maps, multiplies matrices, sorts objects. usage: Work ROUNDS (0: without end) */
public final class Work {
    private record Item(String name, int weight) {}

    private static long words(long seed) {
        Map<String, Integer> counts = new HashMap<>();
        long state = seed * 2 + 1;
        for (int i = 0; i < 20_000; i++) {
            state = state * 6364136223846793005L + 1442695040888963407L;
            counts.merge(Long.toString(state >>> 52, 36), 1, Integer::sum);
        }
        List<Item> items = new ArrayList<>();
        counts.forEach((name, weight) -> items.add(new Item(name, weight)));
        items.sort((a, b) -> a.weight != b.weight ? b.weight - a.weight : a.name.compareTo(b.name));
        long sum = 0;
        for (Item item : items) {
            sum = sum * 31 + item.name.hashCode() + item.weight;
        }
        return sum;
    }

    private static double product(int n) {
        double[][] a = new double[n][n], b = new double[n][n];
        for (int i = 0; i < n; i++) {
            for (int j = 0; j < n; j++) {
                a[i][j] = (i * 7 + j) % 11;
                b[i][j] = (i + j * 5) % 13;
            }
        }
        double trace = 0;
        for (int i = 0; i < n; i++) {
            for (int j = 0; j < n; j++) {
                double sum = 0;
                for (int k = 0; k < n; k++) {
                    sum += a[i][k] * b[k][j];
                }
                trace += sum * (i ^ j);
            }
        }
        return trace;
    }

    public static void main(String[] arguments) {
        long rounds = arguments.length > 0 ? Long.parseLong(arguments[0]) : 0;
        long sum = 0;
        for (long i = 0; rounds == 0 || i < rounds; i++) {
            sum = sum * 31 + words(i % 1000) + (long) product(60);
        }
        System.out.println(Long.toHexString(sum));
    }
}
