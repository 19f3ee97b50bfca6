import java.io.BufferedInputStream;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.InputStream;
import java.io.ObjectInputStream;
import java.io.ObjectOutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.zip.CRC32;
import java.util.zip.ZipEntry;
import java.util.zip.ZipInputStream;
import org.nd4j.common.primitives.Pair;

/**
 * What Java itself makes of our files. Lines of text are "name TAB offset TAB length", in UTF-8.
 *
 * <pre>
 * read MANIFEST           prints the lines of a serialised manifest
 * write LINES MANIFEST    serialises the map that the lines describe
 * unzip ARCHIVE...        prints "name TAB size TAB crc32" for each entry, read as a stream
 * </pre>
 */
public final class SameDiffFiles {
    private static final PrintStream OUT = new PrintStream(System.out, true, StandardCharsets.UTF_8);

    public static void main(String[] args) throws Exception {
        switch (args[0]) {
            case "read" -> read(Path.of(args[1]));
            case "write" -> write(Path.of(args[1]), Path.of(args[2]));
            case "unzip" -> {
                for (int i = 1; i < args.length; i++) {
                    unzip(Path.of(args[i]));
                }
            }
            default -> throw new IllegalArgumentException(args[0]);
        }
    }

    @SuppressWarnings("unchecked")
    private static void read(Path manifest) throws Exception {
        byte[] data = Files.readAllBytes(manifest);
        try (ObjectInputStream in = new ObjectInputStream(new ByteArrayInputStream(data))) {
            LinkedHashMap<String, Pair<Long, Long>> map = (LinkedHashMap<String, Pair<Long, Long>>) in.readObject();
            for (Map.Entry<String, Pair<Long, Long>> entry : map.entrySet()) {
                Pair<Long, Long> place = entry.getValue();
                OUT.println(entry.getKey() + "\t" + place.getFirst() + "\t" + place.getSecond());
            }
        }
    }

    private static void write(Path lines, Path manifest) throws Exception {
        Map<String, Pair<Long, Long>> map = new LinkedHashMap<>();
        for (String line : Files.readAllLines(lines, StandardCharsets.UTF_8)) {
            String[] parts = line.split("\t", -1);
            map.put(parts[0], new Pair<>(Long.valueOf(parts[1]), Long.valueOf(parts[2])));
        }
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        try (ObjectOutputStream out = new ObjectOutputStream(bytes)) {
            out.writeObject(map);
        }
        Files.write(manifest, bytes.toByteArray());
    }

    private static void unzip(Path archive) throws Exception {
        try (InputStream file = new BufferedInputStream(Files.newInputStream(archive));
                ZipInputStream zip = new ZipInputStream(file)) {
            for (ZipEntry entry = zip.getNextEntry(); entry != null; entry = zip.getNextEntry()) {
                byte[] data = zip.readAllBytes();
                CRC32 crc = new CRC32();
                crc.update(data);
                OUT.println(entry.getName() + "\t" + data.length + "\t" + crc.getValue());
            }
        }
    }
}
