import java.nio.file.Files;
import java.nio.file.Path;
import org.apache.kafka.tools.AclCommand;

/**
 * Runs calls of kafka-acls.sh in one Java: a start of Java takes longer than most calls.
 *
 * The file of its argument has a line for each call, with a NUL before each word. A call that fails ends
 * all, with exit code 1, as `sh -e` would.
 */
public class AclCommands {
    public static void main(String[] arguments) throws Exception {
        for (String line : Files.readAllLines(Path.of(arguments[0]))) {
            String[] words = line.split("\0", -1);
            AclCommand.main(java.util.Arrays.copyOfRange(words, 1, words.length));
        }
    }
}
