package tickwatch.peers;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.math.BigDecimal;
import java.math.MathContext;
import java.math.RoundingMode;
import java.util.Random;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

class DecimalsTest {
    @ParameterizedTest
    @CsvSource({
        "9500.25, 9500.25",
        "9500.50, 9500.5",
        "-37.63, -37.63",
        "0.1, 0.1",
        "0.30000000000000004, 0.3",
        "10.000000000000001, 10",
        "123456789012345678, 123456789012346000",
        "0.000000000000000001, 0.000000000000000001",
        "1e3, 1000",
        "0.000, 0",
    })
    void a_price_is_written_plainly_with_15_digits(String text, String plain) {
        assertEquals(plain, Decimals.text(Decimals.price(new BigDecimal(text))));
    }

    @Test
    void prices_order_and_print_as_their_decimals() {
        MathContext digits = new MathContext(15, RoundingMode.HALF_EVEN);
        Random random = new Random(2);
        BigDecimal before = BigDecimal.ONE;
        for (int i = 0; i < 100_000; i++) {
            int scale = random.nextInt(19);
            BigDecimal next = random.nextBoolean()
                    ? BigDecimal.valueOf(random.nextLong() >> random.nextInt(63), scale).round(digits)
                    // The nearest neighbour there is.
                    : before.add(before.ulp()).round(digits);
            double price = Decimals.price(next);
            assertEquals(
                    next.compareTo(before),
                    Double.compare(price, Decimals.price(before)),
                    () -> next + " and the price before it");
            assertEquals(Decimals.text(next), Decimals.text(price));
            before = next;
        }
    }
}
